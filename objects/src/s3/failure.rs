//! What an answer or an error of the connection means to the caller.

use crate::error::ObjectError;
use object_store::client::HttpError;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// How much of a server's words is shown.
const WORDS_BYTES_MAX: usize = 300;

/// Why an attempt has failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// There is no object of that name.
    Absent,
    /// Another attempt may succeed, after the time that the server asks for.
    Retry { reason: String, after: Option<Duration> },
    /// No attempt will.
    Final(ObjectError),
}

impl Failure {
    /// What an error means.
    pub(super) fn of(error: &object_store::Error) -> Self {
        let mut last: &(dyn Error + 'static) = error;
        let mut is_of_connection = false;
        while let Some(cause) = last.source() {
            last = cause;
            if let Some(status) = last.downcast_ref::<Status>() {
                return status.failure();
            }
            if let Some(Certificate(reason)) = last.downcast_ref() {
                return refused(format!(
                    "the certificate of the server is not accepted ({reason}): its authority, its names and its dates \
                     have to be right, and an authority of your own be in the file of authorities"
                ));
            }
            is_of_connection |= last.is::<HttpError>();
        }
        let words = shown(&last.to_string());
        let reason = match is_of_connection {
            true => words,
            false => format!("the answer is not understood: {words}"),
        };
        Self::Retry { reason, after: None }
    }

    /// No failure, if there is no object.
    pub(super) fn or_absent(self) -> Result<(), Self> {
        match self {
            Self::Absent => Ok(()),
            other => Err(other),
        }
    }
}

fn refused(reason: String) -> Failure {
    Failure::Final(ObjectError::refused(reason))
}

/// An answer that is no success.
#[derive(Debug)]
pub(super) struct Status {
    /// It is S3's, and not that of the source of credentials.
    is_s3: bool,
    status: u16,
    /// S3's code of the error, or nothing.
    code: String,
    message: String,
    after: Option<Duration>,
}

impl Status {
    pub(super) fn new(is_s3: bool, status: u16, body: &[u8], after: Option<Duration>) -> Self {
        let body = String::from_utf8_lossy(body);
        let element = |name: &str| {
            let after = body.split_once(&format!("<{name}>")).map_or("", |(_, after)| after);
            shown(after.split_once("</").map_or("", |(text, _)| text))
        };
        Self { is_s3, status, code: element("Code"), message: element("Message"), after }
    }

    /// What the answer means. <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>
    fn failure(&self) -> Failure {
        let retry = || Failure::Retry { reason: self.to_string(), after: self.after };
        if !self.is_s3 {
            return match self.status {
                408 | 429 | 500.. => retry(),
                _ => {
                    refused(format!("no credentials from the metadata service: {self}. Does this machine have a role?"))
                }
            };
        }
        let advice = match (self.status, self.code.as_str()) {
            (404, "NoSuchKey") => return Failure::Absent,
            (_, "NoSuchBucket") => "the bucket does not exist: create it, or correct its name or the endpoint",
            // Never taken for an absent object: it may be the answer of a proxy or of another kind of server.
            (200..=299 | 404, _) => {
                "this is not the answer of an S3 server, or not one of ListObjectsV2: is the endpoint right?"
            }
            (_, "InvalidAccessKeyId") => "the server does not know the access key: correct the credentials",
            (_, "SignatureDoesNotMatch") => "the secret key is wrong, or a proxy changes requests",
            (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
                "the temporary credentials have expired or are invalid: renew them"
            }
            (_, "RequestTimeTooSkewed") => "the clock of this machine or of the server is wrong",
            (_, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" | "PermanentRedirect")
            | (301 | 302 | 308, _) => "the region or the endpoint is not that of the bucket",
            (_, "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage") | (507, _) => "the storage is full",
            (_, "RequestTimeout" | "OperationAborted") => return retry(),
            (401 | 403, _) => {
                "the credentials are not allowed to do this: gateways need to put, get and delete objects, and to list \
                 the bucket (s3:PutObject, s3:GetObject, s3:DeleteObject, s3:ListBucket)"
            }
            (501, _) => "the server does not support this request",
            (307 | 408 | 409 | 425 | 429 | 500.., _) => return retry(),
            _ => "the request is refused",
        };
        refused(format!("{advice}: {self}"))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer is {}", self.status)?;
        match (self.code.as_str(), self.message.as_str()) {
            ("", _) => Ok(()),
            (code, "") => write!(f, " {code}"),
            (code, message) => write!(f, " {code}, \"{message}\""),
        }
    }
}

impl Error for Status {}

/// A certificate that was not accepted.
#[derive(Debug)]
pub(super) struct Certificate(String);

impl Certificate {
    /// The certificate error below an error.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let tls = tls_error(error)?;
        matches!(tls, rustls::Error::InvalidCertificate(_)).then(|| Self(shown(&tls.to_string())))
    }
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(tls);
    }
    // The cause of a system's error is inside of it, and its `source` is the cause of that.
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match inner {
        Some(inner) => tls_error(inner),
        None => tls_error(error.source()?),
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Certificate {}

/// Words of a server or of a library, on one line that is not long.
fn shown(words: &str) -> String {
    let mut text = String::new();
    for character in words.chars() {
        if text.len() >= WORDS_BYTES_MAX {
            text.push('…');
            break;
        }
        text.push(if character.is_control() { ' ' } else { character });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(is_s3: bool, status: u16, code: &str) -> Status {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>said</Message></Error>");
        Status::new(is_s3, status, if code.is_empty() { b"<html>" } else { body.as_bytes() }, None)
    }

    #[test]
    fn answers_mean_what_the_caller_can_do() {
        let table = [
            (404, "NoSuchKey", "absent"),
            (404, "NoSuchBucket", "does not exist"),
            (404, "", "is the endpoint right"),
            (404, "NoSuchUpload", "is the endpoint right"),
            (403, "InvalidAccessKeyId", "does not know the access key"),
            (403, "SignatureDoesNotMatch", "secret key is wrong"),
            (403, "AccessDenied", "s3:ListBucket"),
            (403, "", "s3:ListBucket"),
            (401, "", "not allowed"),
            (400, "ExpiredToken", "expired"),
            (403, "RequestTimeTooSkewed", "clock"),
            (400, "AuthorizationHeaderMalformed", "region"),
            (301, "PermanentRedirect", "region"),
            (301, "", "region"),
            (507, "XMinioStorageFull", "full"),
            (501, "NotImplemented", "does not support"),
            (400, "InvalidRequest", "refused"),
            (400, "RequestTimeout", "retry"),
            (409, "OperationAborted", "retry"),
            (408, "", "retry"),
            (429, "TooManyRequests", "retry"),
            (500, "InternalError", "retry"),
            (503, "SlowDown", "retry"),
            (502, "", "retry"),
        ];
        for (number, code, expected) in table {
            match (status(true, number, code).failure(), expected) {
                (Failure::Absent, "absent") => {}
                (Failure::Retry { reason, .. }, "retry") => assert!(reason.contains(&number.to_string()), "{reason}"),
                (Failure::Final(ObjectError::Refused { reason }), words) => {
                    assert!(reason.contains(words), "{number} {code}: {reason}");
                }
                (failure, _) => panic!("{number} {code}: {failure:?}"),
            }
        }
    }

    #[test]
    fn an_absent_role_is_no_absent_object() {
        for number in [404, 403] {
            let failure = status(false, number, "NoSuchKey").failure();
            assert!(matches!(failure, Failure::Final(ObjectError::Refused { .. })), "{failure:?}");
        }
        assert!(matches!(status(false, 503, "").failure(), Failure::Retry { .. }));
    }

    #[test]
    fn words_of_a_server_are_bounded() {
        let long = status(true, 500, &"ä\n".repeat(100_000));
        assert!(long.to_string().len() < 500 && !long.to_string().contains('\n'), "{long}");
        assert_eq!(Status::new(true, 500, b"<Code>unclosed", None).to_string(), "the answer is 500");
    }
}
