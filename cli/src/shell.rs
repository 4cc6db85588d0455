//! `causeway completions` and `causeway man`: what shells and `man` know of the command line, made from the command line itself.

use crate::output::{print, print_bytes};
use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// What the binary is called.
const NAME: &str = "causeway";

const COMPLETIONS: &str = "\
For this session:   source <(causeway completions bash)
For good, in bash:  causeway completions bash > ~/.local/share/bash-completion/completions/causeway
In zsh:             causeway completions zsh > ~/.zfunc/_causeway      with fpath+=~/.zfunc before compinit
In fish:            causeway completions fish > ~/.config/fish/completions/causeway.fish
In elvish:          causeway completions elvish >> ~/.config/elvish/rc.elv
In PowerShell:      causeway completions powershell | Out-String | Invoke-Expression";

const MAN: &str = "\
One page:       causeway man | man -l -
For everybody:  causeway man /usr/local/share/man/man1      then: man causeway, man causeway-add, man causeway-store-check";

/// `causeway completions`
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

/// `causeway man`
#[derive(Debug, Args)]
#[command(after_help = MAN)]
pub struct ManArgs {
    /// Write a page for each command to this folder, which is made if need be; without it, the first page is printed
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints what a shell needs.
///
/// # Errors
/// When standard output cannot be written.
pub fn completions(mut command: clap::Command, args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, NAME, &mut script);
    print_bytes(&script)
}

/// Writes manual pages.
///
/// # Errors
/// When the folder or a page cannot be written.
pub fn man(command: clap::Command, args: &ManArgs) -> anyhow::Result<()> {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return print_bytes(&page);
    };
    let unwritten = || format!("{} cannot be written", dir.display());
    std::fs::create_dir_all(dir).with_context(unwritten)?;
    clap_mangen::generate_to(command, dir).with_context(unwritten)?;
    print(&format!("the pages are in {}\n", dir.display()))
}
