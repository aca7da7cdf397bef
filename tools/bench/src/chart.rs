//! Curves, as a report hands them to whoever draws.

/// A chart with one or more curves over one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What the horizontal axis counts.
    pub x: Axis,
    /// What the vertical axis counts.
    pub y: Axis,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name, with the unit.
    pub name: String,
    /// How values are laid out on it.
    pub scale: Scale,
}

/// How values are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero on.
    Linear,
    /// Each power of ten takes the same room.
    Logarithmic,
    /// Percentiles: each further nine takes the same room.
    Nines,
}

/// A curve: points by ascending `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is of.
    pub name: String,
    /// Where it goes.
    pub points: Vec<(f64, f64)>,
}

impl Axis {
    pub(crate) fn new(name: &str, scale: Scale) -> Self {
        Self { name: name.to_owned(), scale }
    }
}
