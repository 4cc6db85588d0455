//! Module layers: the top-level modules of a crate have no cyclic dependencies.
//!
//! A module depends on another when its code names a path into it. Test code is ignored: a test of a low layer may
//! use a higher one. Paths inside macros are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, UseTree};

/// Which top-level modules each top-level module of a crate depends on.
type Edges = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_of_a_crate_form_no_cycle() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let members: Vec<PathBuf> = fs::read_dir(workspace)
        .expect("reads")
        .map(|entry| entry.expect("an entry").path())
        .filter(|folder| folder.join("Cargo.toml").exists() && folder.join("src").exists())
        .collect();
    assert!(members.len() >= 6, "{members:?}");
    let found: Vec<String> = members.iter().filter_map(|member| cycle_text(member)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_cycle_is_found() {
    let table = [
        (&[("a", "b"), ("b", "c")][..], None),
        (&[("a", "b"), ("b", "c"), ("c", "b")], Some(vec!["b", "c"])),
        (&[("a", "b"), ("b", "a"), ("b", "c")], Some(vec!["a", "b"])),
    ];
    for (pairs, expected) in table {
        let mut edges = Edges::new();
        for (from, to) in pairs {
            edges.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        let found = cycle(&edges);
        assert_eq!(found, expected.map(|names| names.into_iter().map(str::to_owned).collect()), "{pairs:?}");
    }
    let source = "use crate::a::{self, b::C};\nmod inner { use super::super::d::E; fn f() { crate::f::g(); } }\n\
        #[cfg(test)]\nmod tests { use crate::z::Z; }";
    let mut seen = Names { module: vec!["own".to_owned()], found: BTreeSet::new() };
    seen.visit_file(&syn::parse_file(source).expect("Rust"));
    assert_eq!(seen.found.into_iter().collect::<Vec<_>>(), ["a", "d", "f"]);
}

fn cycle_text(member: &Path) -> Option<String> {
    let edges = edges(&member.join("src"));
    let found = cycle(&edges)?;
    let inner =
        |name: &String| edges[name].iter().filter(|to| found.contains(to)).cloned().collect::<Vec<_>>().join(", ");
    let lines: Vec<String> = found.iter().map(|name| format!("  {name} depends on {}", inner(name))).collect();
    Some(format!("modules of {} form a cycle:\n{}", member.display(), lines.join("\n")))
}

/// The modules that are part of cycles, or lie between two cycles.
fn cycle(edges: &Edges) -> Option<Vec<String>> {
    let mut left: BTreeSet<&String> = edges.keys().collect();
    loop {
        let before = left.len();
        let is_kept = |name: &String, left: &BTreeSet<&String>| {
            let leads_on = edges[name].iter().any(|to| left.contains(to));
            leads_on && left.iter().any(|from| edges[*from].contains(name))
        };
        left = left.iter().copied().filter(|name| is_kept(name, &left)).collect();
        match left.len() {
            0 => return None,
            same if same == before => return Some(left.into_iter().cloned().collect()),
            _ => {}
        }
    }
}

fn edges(sources: &Path) -> Edges {
    let mut named = Edges::new();
    for path in rust_files(sources) {
        let module = module_of(path.strip_prefix(sources).expect("is below"));
        let Some(top) = module.first().cloned() else { continue };
        if module.iter().any(|name| name == "tests" || name.ends_with("_tests")) {
            continue;
        }
        let file: File = syn::parse_file(&fs::read_to_string(&path).expect("reads")).expect("Rust");
        let mut names = Names { module, found: BTreeSet::new() };
        names.visit_file(&file);
        named.entry(top).or_default().extend(names.found);
    }
    let modules: BTreeSet<String> = named.keys().cloned().collect();
    for (own, found) in &mut named {
        found.retain(|name| modules.contains(name) && name != own);
    }
    named
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("reads").map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => rust_files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The path of the module in a file; empty for the crate's root.
fn module_of(file: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| matches!(name.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// The names below the crate's root that a module mentions.
struct Names {
    module: Vec<String>,
    found: BTreeSet<String>,
}

impl Names {
    fn mention(&mut self, path: &[String]) {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let name = match path.first().map(String::as_str) {
            Some("crate") => path.get(1),
            Some("super") if supers >= self.module.len() => path.get(supers),
            _ => None,
        };
        self.found.extend(name.cloned());
    }

    fn mention_tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.mention_tree(&path.tree, &with(&path.ident)),
            UseTree::Name(name) => self.mention(&with(&name.ident)),
            UseTree::Rename(name) => self.mention(&with(&name.ident)),
            UseTree::Glob(_) => self.mention(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.mention_tree(tree, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(module) => &module.attrs,
            Item::Fn(function) => &function.attrs,
            Item::Use(import) => &import.attrs,
            Item::Impl(block) => &block.attrs,
            _ => &[],
        };
        if attributes.iter().any(is_for_tests) {
            return;
        }
        match item {
            Item::Use(import) => self.mention_tree(&import.tree, &[]),
            Item::Mod(module) => {
                self.module.push(module.ident.to_string());
                visit::visit_item(self, item);
                self.module.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.mention(&path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
}
