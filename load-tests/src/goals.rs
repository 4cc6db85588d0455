//! What figures are judged by: a bar to be met, an aim to be come close to.

/// What is to be reached, in words and as a number of the unit of what is measured.
#[derive(Debug, Clone)]
pub struct Goal {
    pub text: String,
    pub limit: f64,
}

impl Goal {
    pub fn new(text: impl Into<String>, limit: f64) -> Self {
        Self { text: text.into(), limit }
    }

    /// For people.
    pub fn verdict(&self, met: bool) -> String {
        format!("{}: {}", self.text, if met { "met" } else { "**missed**" })
    }
}
