//! Messages of errors that wrap others.

use std::error::Error;

/// The message of the innermost source of an error. The outer errors of libp2p, reqwest and hyper have none of their
/// own, and those of reqwest name the URL, which may contain a password.
pub fn innermost(mut error: &(dyn Error + 'static)) -> String {
    // `source` of an I/O error that wraps another error returns the source of the inner error, not the inner error.
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Box<dyn Error + Send + Sync>);

    #[test]
    fn the_message_is_that_of_the_last_source() {
        let cause = || Box::from("refused");
        let io = std::io::Error::other(Outer(Box::new(Outer(cause()))));
        let nested = Outer(Box::new(Outer(cause())));
        for (error, expected) in [(&nested as &(dyn Error + 'static), "refused"), (&io, "refused")] {
            assert_eq!(innermost(error), expected, "{error:?}");
        }
        assert_eq!(innermost(&std::io::Error::other("alone")), "alone");
    }
}
