//! Results as plots: SVG files beside the tables.
//!
//! Goals: readable on a phone, on paper and by the colour-blind: few words in large letters, a colour-blind safe
//! palette, and a marker of its own for each line; a title that says what is compared, units at the axes, and whether
//! higher or lower is better. The same figures make the same file.
//!
//! Non-goals: interaction; the exact width of a text, for which fonts would have to be read.
//!
//! | module | concern |
//! |---|---|
//! | [`axis`] | an axis: its range, its ticks and their labels |
//! | [`draw`] | lines, bars and the legend |
//! | [`ratios`] | measures beside their goals |

mod axis;
mod draw;
pub mod ratios;

use crate::report::Picture;
use anyhow::Result;

/// Panels below each other, under one title and one legend.
#[derive(Debug, Clone)]
pub struct Plot {
    /// What is compared.
    pub title: String,
    /// How it was measured, and whether higher or lower is better; in one line.
    pub subtitle: String,
    /// What is compared, in the order of the figures.
    pub legend: Vec<String>,
    pub panels: Vec<Panel>,
}

impl Plot {
    pub fn new(title: &str, subtitle: &str, legend: &[impl ToString], panels: Vec<Panel>) -> Self {
        let legend = legend.iter().map(ToString::to_string).collect();
        Self { title: title.to_owned(), subtitle: subtitle.to_owned(), legend, panels }
    }

    /// Draws it; its title is the alternative text.
    pub fn picture(&self, name: &'static str) -> Result<Picture> {
        Ok(Picture { name, alt: self.title.clone(), svg: draw::svg(self)? })
    }
}

/// Figures over one pair of axes.
#[derive(Debug, Clone)]
pub struct Panel {
    pub heading: String,
    pub x: Axis,
    pub y: Axis,
    pub marks: Marks,
}

impl Panel {
    pub fn new(heading: &str, x: Axis, y: Axis, marks: Marks) -> Self {
        Self { heading: heading.to_owned(), x, y, marks }
    }
}

/// What is measured along an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// With the unit.
    pub label: String,
    pub scale: Scale,
}

impl Axis {
    pub fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

/// How values lie on an axis.
#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// Each name at its number, from 0.
    Names(Vec<String>),
    /// From 0.
    Linear,
    /// By powers of ten; what is not above 0 is left out.
    Log,
}

impl Scale {
    pub fn names<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self::Names(names.into_iter().map(Into::into).collect())
    }
}

/// The figures, in the legend's order.
#[derive(Debug, Clone)]
pub enum Marks {
    /// Joined points; a value that is not a number is left out.
    Lines(Vec<Vec<(f64, f64)>>),
    /// One bar of each beside each other at each name of the x axis; a value that is not a number leaves its place
    /// empty.
    Bars(Vec<Vec<f64>>),
}

impl Marks {
    fn points(&self) -> Vec<(f64, f64)> {
        match self {
            Self::Lines(all) => all.iter().flatten().copied().collect(),
            Self::Bars(all) => {
                all.iter().flat_map(|bars| bars.iter().zip(0..).map(|(y, x)| (f64::from(x), *y))).collect()
            }
        }
    }
}
