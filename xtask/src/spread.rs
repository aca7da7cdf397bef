//! What was measured several times, and how it is shown.

/// Several measurements of one thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// The middle one, or the mean of the two in the middle.
    pub(crate) fn median(&self) -> Option<f64> {
        let (len, half) = (self.0.len(), self.0.len() / 2);
        match len {
            0 => None,
            _ if len % 2 == 1 => Some(self.0[half]),
            _ => Some((self.0[half - 1] + self.0[half]) / 2.0),
        }
    }

    /// Whether this is worse than the other by more than either varies: its median is worse than all of the other, and all
    /// of it worse than the other's median.
    pub(crate) fn is_worse_than(&self, other: &Self, unit: Unit) -> bool {
        let (Some(median), Some(other_median)) = (self.median(), other.median()) else { return false };
        let worse = |a: f64, b: f64| match unit {
            Unit::PerSecond => a < b,
            Unit::Micros => a > b,
        };
        other.0.iter().all(|figure| worse(median, *figure))
            && self.0.iter().all(|figure| worse(*figure, other_median))
    }

    /// `median (least–most)`.
    pub(crate) fn show(&self, unit: Unit) -> String {
        self.show_with(|figure| unit.show(figure))
    }

    /// The same with figures as `show` has them.
    pub(crate) fn show_with(&self, show: impl Fn(f64) -> String) -> String {
        match (self.median(), self.0.first(), self.0.last()) {
            (Some(median), Some(least), Some(most)) if self.0.len() > 1 => {
                format!("{} ({}–{})", show(median), show(*least), show(*most))
            }
            (Some(median), ..) => show(median),
            _ => "–".to_owned(),
        }
    }
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// More is better.
    PerSecond,
    /// Less is better.
    Micros,
}

impl Unit {
    /// A figure with its unit.
    pub(crate) fn show(self, figure: f64) -> String {
        match self {
            Self::PerSecond => format!("{} msg/s", thousands(figure)),
            Self::Micros if figure < 1000.0 => format!("{figure:.0} µs"),
            Self::Micros => format!("{:.2} ms", figure / 1000.0),
        }
    }
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(figures: &[f64]) -> Spread {
        let mut spread = Spread::default();
        figures.iter().for_each(|figure| spread.add(*figure));
        spread
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(spread(&[]).median(), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(spread(&[30.0, 10.0, 20.0]).show(Unit::Micros), "20 µs (10 µs–30 µs)");
    }

    #[test]
    fn figures_are_shown_with_their_unit() {
        assert_eq!(Unit::PerSecond.show(1_234_567.8), "1,234,568 msg/s");
        assert_eq!(Unit::Micros.show(99.6), "100 µs");
        assert_eq!(Unit::Micros.show(1234.0), "1.23 ms");
    }
}
