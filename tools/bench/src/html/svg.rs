//! A chart as SVG.

use std::fmt::Write;

use super::escape;
use super::ruler::Ruler;
use crate::chart::Chart;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;
/// Colours that the style has.
const COLOURS: usize = 3;

/// Draws a chart; its colours come from the page.
pub(super) fn draw(chart: &Chart) -> String {
    let points = || chart.curves.iter().flat_map(|curve| curve.points.iter().copied());
    let x = Ruler::new(chart.x.scale, points().map(|(x, _)| x), LEFT, WIDTH - RIGHT);
    let y = Ruler::new(chart.y.scale, points().map(|(_, y)| y), HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&chart.title)
    );
    grid(&mut out, chart, x, y);
    for (index, curve) in chart.curves.iter().enumerate() {
        let colour = index % COLOURS;
        let mut path = String::new();
        for (px, py) in &curve.points {
            let _ = write!(path, "{:.1},{:.1} ", x.place(*px), y.place(*py));
        }
        let _ = writeln!(
            out,
            "<polyline class=\"curve c{colour}\" points=\"{}\"><title>{}</title></polyline>",
            path.trim_end(),
            escape(&curve.name)
        );
        let _ = writeln!(
            out,
            "<text class=\"c{colour}\" x=\"{:.0}\" y=\"16\">{}</text>",
            LEFT + 170.0 * index as f64,
            escape(&curve.name)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn grid(out: &mut String, chart: &Chart, x: Ruler, y: Ruler) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (value, label) in y.ticks() {
        let at = y.place(value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for (value, label) in x.ticks() {
        let at = x.place(value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{:.0}\"/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
            bottom + 5.0,
            bottom + 19.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{right}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
         <text x=\"{right}\" y=\"16\" text-anchor=\"end\">{}</text>",
        HEIGHT - 6.0,
        escape(&chart.x.name),
        escape(&chart.y.name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Curve, Scale};

    #[test]
    fn every_curve_is_drawn_within_the_paper() {
        let curve = |name: &str, top: f64| Curve {
            name: name.to_owned(),
            points: (0..10).map(|n| (f64::from(n), top * f64::from(n))).collect(),
        };
        let chart = Chart {
            title: "T".into(),
            x: Axis::new("seconds", Scale::Linear),
            y: Axis::new("a second", Scale::Linear),
            curves: vec![curve("published", 10.0), curve("a & b", 99.0)],
        };
        let svg = draw(&chart);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &amp; b"));
        for points in svg.split("points=\"").skip(1) {
            for point in points.split('"').next().unwrap().split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                assert!((0.0..=WIDTH).contains(&x.parse().unwrap()), "{point}");
                assert!((0.0..=HEIGHT).contains(&y.parse().unwrap()), "{point}");
            }
        }
    }
}
