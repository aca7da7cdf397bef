//! Where a value stands on an axis, and which values are written beside it.

use crate::chart::Scale;

/// An axis on paper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    /// Where the lowest value stands, and where the highest.
    from: f64,
    to: f64,
}

impl Ruler {
    /// A ruler for these values between two places.
    pub(super) fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (0.0, 1.0);
        }
        let (low, high) = match scale {
            Scale::Linear => (0.0, round_up(most.max(f64::MIN_POSITIVE))),
            Scale::Logarithmic => {
                let low = least.max(1e-3).log10().floor();
                (low, most.max(1e-3).log10().ceil().max(low + 1.0))
            }
            Scale::Nines => (0.0, nines(most).max(1.0)),
        };
        Self { scale, low, high, from, to }
    }

    /// Where a value stands.
    pub(super) fn place(&self, value: f64) -> f64 {
        let at = match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(1e-3).log10(),
            Scale::Nines => nines(value),
        };
        let share = ((at - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// The values to write beside it.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => (0..=4)
                .map(|step| self.high * f64::from(step) / 4.0)
                .map(|value| (value, short(value)))
                .collect(),
            Scale::Logarithmic => (self.low as i32..=self.high as i32)
                .map(|power| 10f64.powi(power))
                .map(|value| (value, short(value)))
                .collect(),
            Scale::Nines => (0..=self.high.floor() as i32)
                .map(|count| 100.0 * (1.0 - 10f64.powi(-count)))
                .map(|percentile| {
                    let text = format!("{percentile:.6}");
                    (percentile, text.trim_end_matches('0').trim_end_matches('.').to_owned() + " %")
                })
                .collect(),
        }
    }
}

/// How many nines a percentile has: 1 for 90 %, 2 for 99 %.
fn nines(percentile: f64) -> f64 {
    -(1.0 - (percentile / 100.0).min(1.0 - 1e-9)).log10()
}

/// The next number that is easy to divide by four.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2, 4.0, 4.8, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(10.0 * power)
}

/// A number in little room.
fn short(value: f64) -> String {
    let (number, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{number:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_ruler_begins_at_zero_and_ends_above_the_most() {
        let ruler = Ruler::new(Scale::Linear, [500.0, 1_450_000.0].into_iter(), 0.0, 100.0);
        assert_eq!(ruler.place(0.0), 0.0);
        assert_eq!(ruler.place(800_000.0), 50.0);
        let labels: Vec<String> = ruler.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0", "400k", "800k", "1.2M", "1.6M"]);
    }

    #[test]
    fn each_power_of_ten_takes_the_same_room() {
        let ruler = Ruler::new(Scale::Logarithmic, [20.0, 900.0].into_iter(), 200.0, 0.0);
        assert_eq!(ruler.place(10.0), 200.0);
        assert!((ruler.place(100.0) - 100.0).abs() < 1e-9);
        assert_eq!(ruler.ticks().len(), 3);
    }

    #[test]
    fn each_further_nine_takes_the_same_room() {
        let ruler = Ruler::new(Scale::Nines, [0.0, 99.9].into_iter(), 0.0, 300.0);
        assert!((ruler.place(90.0) - 100.0).abs() < 1e-6);
        assert!((ruler.place(99.0) - 200.0).abs() < 1e-6);
        let labels: Vec<String> = ruler.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels[..3], ["0 %", "90 %", "99 %"]);
    }

    #[test]
    fn nothing_to_show_still_has_a_ruler() {
        for scale in [Scale::Linear, Scale::Logarithmic, Scale::Nines] {
            let ruler = Ruler::new(scale, std::iter::empty(), 0.0, 1.0);
            assert!(ruler.ticks().iter().all(|(value, _)| ruler.place(*value).is_finite()), "{scale:?}");
        }
    }
}
