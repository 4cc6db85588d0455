//! Detects formats that are already compressed, by their signatures.
//!
//! This is only a hint: it is available only for the first block of a file, some signatures are short, and a video may
//! begin with a table that compresses well. So a match does not exclude a block from compression, but raises the
//! threshold for the sample (`estimate`). Formats with varying content (PDF, TIFF, WAV, TAR) are not listed, nor is
//! Brotli, which has no signature.

/// The offsets and bytes of signatures.
const SIGNATURES: &[(usize, &[u8])] = &[
    // Images.
    (0, b"\xff\xd8\xff"),      // JPEG
    (0, b"\x89PNG\r\n\x1a\n"), // PNG
    (0, b"GIF8"),              // GIF
    (8, b"WEBP"),              // WebP
    (0, b"\xff\x0a"),          // JPEG XL, codestream
    (4, b"JXL \r\n\x87\n"),    // JPEG XL, container
    (4, b"jP  \r\n\x87\n"),    // JPEG 2000
    // Video, audio, and images in the same container.
    (4, b"ftyp"),             // MP4, MOV, M4A, AVIF, HEIF
    (0, b"\x1a\x45\xdf\xa3"), // WebM, Matroska
    (0, b"OggS"),             // Ogg
    (0, b"fLaC"),             // FLAC
    (0, b"ID3"),              // MP3 and AAC with a tag before them
    (0, b"\xff\xfb"),         // MPEG 1 layer III
    (0, b"\xff\xfa"),
    (0, b"\xff\xf3"), // MPEG 2 layer III
    (0, b"\xff\xf2"),
    (0, b"\xff\xf1"), // AAC in ADTS
    (0, b"\xff\xf9"),
    // Archives and compressed files.
    (0, b"PK\x03\x04"),         // ZIP and formats based on it: documents, JAR, EPUB, APK
    (0, b"\x1f\x8b\x08"),       // gzip
    (0, b"\x28\xb5\x2f\xfd"),   // zstd
    (0, b"\xfd7zXZ\x00"),       // xz
    (0, b"BZh"),                // bzip2
    (0, b"\x04\x22\x4d\x18"),   // LZ4
    (0, b"LZIP"),               // lzip
    (0, b"7z\xbc\xaf\x27\x1c"), // 7-Zip
    (0, b"Rar!\x1a\x07"),       // RAR
    // Fonts and tables.
    (0, b"wOFF"), // WOFF
    (0, b"wOF2"), // WOFF 2
    (0, b"PAR1"), // Parquet
];

/// Whether the beginning of a file matches one of these formats.
pub(super) fn looks_compressed(start: &[u8]) -> bool {
    SIGNATURES.iter().any(|(at, signature)| start.get(*at..).is_some_and(|rest| rest.starts_with(signature)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_formats_are_detected() {
        let compressed: [&[u8]; 12] = [
            b"\xff\xd8\xff\xe0\x00\x10JFIF",
            b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
            b"RIFF\x24\x00\x00\x00WEBPVP8 ",
            b"\x00\x00\x00\x20ftypisom",
            b"\x00\x00\x00\x1cftypavif",
            b"\x1a\x45\xdf\xa3\x9fB\x86",
            b"ID3\x04\x00",
            b"\xff\xfb\x90\x64",
            b"PK\x03\x04\x14\x00",
            b"\x1f\x8b\x08\x00",
            b"BZh91AY&SY",
            b"wOF2\x00\x01",
        ];
        let others: [&[u8]; 9] = [
            b"",
            b"P",
            b"%PDF-1.7",
            b"<!DOCTYPE html>",
            b"RIFF\x24\x00\x00\x00WAVEfmt ",
            b"\xff\xfeU\x00T\x00F\x00",
            b"\x7fELF\x02\x01\x01",
            b"\x00asm\x01\x00\x00\x00",
            b"{\"ftyp\": 1}",
        ];
        for start in compressed {
            assert!(looks_compressed(start), "{start:?}");
        }
        for start in others {
            assert!(!looks_compressed(start), "{start:?}");
        }
    }
}
