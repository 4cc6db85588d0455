//! Images as PNG files (<https://www.w3.org/TR/png-3/>), really encoded: filtered by the line above, and deflated.

use crate::random::SplitMix;
use anyhow::Result;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write as _;

const WIDTH: u32 = 800;
const HEIGHT: u32 = 600;
/// Red, green and blue.
const CHANNELS: usize = 3;
const LINE_BYTES: usize = WIDTH as usize * CHANNELS;
/// A line's bytes are differences to those of the line above.
const FILTER_UP: u8 = 2;

type Pixel = [u8; CHANNELS];

/// Drawings until there are so many bytes: rectangles of one colour each, as in diagrams and screenshots.
pub fn drawings(bytes: usize, seed: u64) -> Result<Vec<Vec<u8>>> {
    until(bytes, seed, |random| {
        let mut pixels = vec![[255; CHANNELS]; (WIDTH * HEIGHT) as usize];
        for _ in 0..400 {
            let colour = random.word().to_le_bytes();
            let [left, top] = [WIDTH, HEIGHT].map(|size| random.word() % u64::from(size));
            let [width, height] = [random.word() % 120, random.word() % 40];
            for y in top..(top + height).min(u64::from(HEIGHT)) {
                for x in left..(left + width).min(u64::from(WIDTH)) {
                    pixels[(y * u64::from(WIDTH) + x) as usize] = [colour[0], colour[1], colour[2]];
                }
            }
        }
        pixels
    })
}

/// Like photos, until there are so many bytes: soft gradients and the noise of a sensor.
pub fn photos(bytes: usize, seed: u64) -> Result<Vec<Vec<u8>>> {
    until(bytes, seed, |random| {
        let phases = [(); CHANNELS].map(|()| random.unit() * 6.0);
        let pixel = |index: u32, random: &mut SplitMix| -> Pixel {
            let (x, y) = (f64::from(index % WIDTH) / 90.0, f64::from(index / WIDTH) / 70.0);
            phases.map(|phase| {
                let light = 128.0 + 50.0 * (x + phase).sin() + 50.0 * (y * phase.cos()).sin();
                (light + (random.unit() - 0.5) * 12.0) as u8
            })
        };
        (0..WIDTH * HEIGHT).map(|index| pixel(index, random)).collect()
    })
}

fn until(bytes: usize, seed: u64, draw: impl Fn(&mut SplitMix) -> Vec<Pixel>) -> Result<Vec<Vec<u8>>> {
    let mut random = SplitMix::new(seed);
    let (mut files, mut made) = (Vec::new(), 0);
    while made < bytes {
        let file = png(&draw(&mut random))?;
        made += file.len();
        files.push(file);
    }
    Ok(files)
}

fn png(pixels: &[Pixel]) -> Result<Vec<u8>> {
    let mut header = [WIDTH.to_be_bytes(), HEIGHT.to_be_bytes()].concat();
    // Eight bits a channel, colour without transparency, the usual compression and filters, not interlaced.
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(&filtered(pixels))?;
    let data = zlib.finish()?;
    let chunks = [chunk(b"IHDR", &header), chunk(b"IDAT", &data), chunk(b"IEND", &[])];
    Ok([b"\x89PNG\r\n\x1a\n".to_vec(), chunks.concat()].concat())
}

fn filtered(pixels: &[Pixel]) -> Vec<u8> {
    let bytes = pixels.as_flattened();
    let mut above = &[0; LINE_BYTES][..];
    let mut out = Vec::with_capacity(bytes.len() + HEIGHT as usize);
    for line in bytes.chunks(LINE_BYTES) {
        out.push(FILTER_UP);
        out.extend(line.iter().zip(above).map(|(byte, above)| byte.wrapping_sub(*above)));
        above = line;
    }
    out
}

fn chunk(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let checked = [&kind[..], body].concat();
    let sum = crc32fast::hash(&checked);
    [&length.to_be_bytes(), &checked[..], &sum.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_made_of_whole_chunks() {
        let files = drawings(1, 1).expect("memory does not fail");
        let [file] = &files[..] else { panic!("{} files", files.len()) };
        let mut rest = file.strip_prefix(b"\x89PNG\r\n\x1a\n").expect("it is a PNG");
        let mut kinds = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let (checked, after) = after.split_at(4 + length);
            let (sum, after) = after.split_first_chunk::<4>().expect("a checksum follows");
            assert_eq!(u32::from_be_bytes(*sum), crc32fast::hash(checked));
            kinds.push(checked[..4].to_vec());
            rest = after;
        }
        assert_eq!(kinds, [b"IHDR", b"IDAT", b"IEND"]);
    }

    #[test]
    fn lines_are_differences_to_the_line_above() {
        let mut pixels = vec![[7; CHANNELS]; (WIDTH * HEIGHT) as usize];
        pixels[WIDTH as usize] = [6; CHANNELS];
        let lines = filtered(&pixels);
        let line = |index: usize| &lines[index * (LINE_BYTES + 1)..][..5];
        assert_eq!([line(0), line(1), line(2)], [[2, 7, 7, 7, 7], [2, 255, 255, 255, 0], [2, 1, 1, 1, 0]]);
    }
}
