//! [`ControlFrames`]: the lengths of the frames on a client's control stream (RFC 9114, sections 6.2.1 and 7.1).
//!
//! `h3` stores a frame until it is complete, whatever length it claims, and searches what it has stored at each poll of
//! the connection. All frames that clients may send there are short, so that a long one ends the connection.

/// The maximum length of a frame, in bytes. SETTINGS is the longest; known clients send less than a hundred bytes.
pub(super) const FRAME_BYTES_MAX: u64 = 1024;

/// The type of a control stream (RFC 9114, section 11.2.4).
const CONTROL_STREAM: u64 = 0;

/// Follows the bytes of one stream without a request.
#[derive(Debug, Default)]
pub(super) struct ControlFrames {
    next: NextField,
    integer: Integer,
}

/// What follows on the stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum NextField {
    #[default]
    StreamType,
    FrameType,
    FrameLength,
    /// The rest of a frame's payload, in bytes.
    Payload(u64),
    /// It is no control stream.
    Anything,
}

/// A variable-length integer (RFC 9000, section 16), of which some bytes are still missing.
#[derive(Debug, Default)]
struct Integer {
    value: u64,
    missing: u32,
}

impl Integer {
    /// Adds the next byte; returns the integer if it is complete.
    fn push(&mut self, byte: u8) -> Option<u64> {
        if self.missing == 0 {
            self.missing = (1 << (byte >> 6)) - 1;
            self.value = u64::from(byte & 0x3f);
        } else {
            self.missing -= 1;
            self.value = self.value << 8 | u64::from(byte);
        }
        (self.missing == 0).then_some(self.value)
    }
}

impl ControlFrames {
    /// Follows the next bytes. Returns `false` if a frame is longer than [`FRAME_BYTES_MAX`].
    pub fn take(&mut self, mut bytes: &[u8]) -> bool {
        while let [first, rest @ ..] = bytes {
            self.next = match self.next {
                NextField::Anything => return true,
                NextField::Payload(left) => {
                    let skipped = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    bytes = &bytes[skipped..];
                    after_payload(left - skipped as u64)
                }
                field => {
                    bytes = rest;
                    match (self.integer.push(*first), field) {
                        (None, field) => field,
                        (Some(CONTROL_STREAM), NextField::StreamType) => NextField::FrameType,
                        (Some(_), NextField::StreamType) => NextField::Anything,
                        (Some(_), NextField::FrameType) => NextField::FrameLength,
                        (Some(length), _) if length > FRAME_BYTES_MAX => return false,
                        (Some(length), _) => after_payload(length),
                    }
                }
            };
        }
        true
    }
}

/// What follows if so many bytes of a payload are left.
fn after_payload(left: u64) -> NextField {
    if left == 0 { NextField::FrameType } else { NextField::Payload(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_frame_of_a_control_stream_is_found_however_the_stream_is_cut() {
        let settings: &[u8] = &[0x04, 0x02, 0x06, 0x00];
        let stream = |kind: &[u8], frames: &[&[u8]]| [kind, &frames.concat()].concat();
        // The frame type 0x21 is reserved; 0x40 0x21 is the same in two bytes.
        let table = [
            (stream(&[0], &[settings, &[0x21, 0x00], settings]), true),
            (stream(&[0], &[settings, &[0x40, 0x21, 0x44, 0x00], &[7; 1024], settings]), true),
            (stream(&[0], &[settings, &[0x21, 0x44, 0x01]]), false),
            (stream(&[0], &[&[0x40, 0x21, 0xc0, 0, 1, 0, 0, 0, 0, 0]]), false),
            (stream(&[0x40, 0x00], &[settings, &[0x21, 0xbf, 0xff, 0xff, 0xff]]), false),
            // The bytes of QPACK's streams and of unknown ones are no frames.
            (stream(&[2], &[&[0x21, 0xc0, 0, 1, 0, 0, 0, 0, 0, 0]]), true),
            (stream(&[0x40, 0x54], &[&[0xff; 100]]), true),
        ];
        for (bytes, is_short) in table {
            for size in [1, 2, 3, 1000] {
                let mut frames = ControlFrames::default();
                let taken = bytes.chunks(size).all(|chunk| frames.take(chunk));
                assert_eq!(taken, is_short, "{bytes:?} by {size}");
            }
        }
    }
}
