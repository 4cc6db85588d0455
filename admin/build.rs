//! Embeds the files of `console/`, the web page of the admin listener, in the binary.
//!
//! The generated `console.rs` has the constant `FILES`: the path and the content of each file with one of the
//! extensions below. Other files, such as notes, are not embedded.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const FOLDER: &str = "console";
/// The extensions for which `src/console.rs` knows the media type.
const EXTENSIONS: [&str; 6] = ["html", "css", "js", "svg", "png", "woff2"];

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo watches all files below the folder, and new ones too.
    println!("cargo::rerun-if-changed={FOLDER}");
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join(FOLDER);
    let mut files = Vec::new();
    collect(&folder, &mut files)?;
    files.sort();
    let mut source = String::from("const FILES: &[(&str, &[u8])] = &[\n");
    for file in &files {
        let name = name_of(file.strip_prefix(&folder)?)?;
        // The path is found when the crate is compiled: several checkouts can share a target folder, and with it the
        // output of this script.
        let path = format!("/{FOLDER}/{name}");
        source.push_str(&format!("    ({name:?}, include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?}))),\n"));
    }
    source.push_str("];\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("console.rs"), source)?;
    Ok(())
}

/// The embedded files below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() {
            collect(&path, files)?;
        } else if EXTENSIONS.contains(&extension) {
            files.push(path);
        }
    }
    Ok(())
}

/// The path of a file in URLs, which needs no escapes.
fn name_of(path: &Path) -> Result<String, Box<dyn Error>> {
    let parts: Option<Vec<&str>> = path.iter().map(|part| part.to_str()).collect();
    let name = parts.ok_or("a file of the console has a name that is not UTF-8")?.join("/");
    match name.chars().all(|c| c.is_ascii_alphanumeric() || "./-_".contains(c)) {
        true => Ok(name),
        false => Err(format!("rename {FOLDER}/{name}: only letters, digits, \".\", \"-\" and \"_\"").into()),
    }
}
