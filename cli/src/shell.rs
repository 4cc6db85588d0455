//! `causeway completions` and `causeway man`: shell completion and manual pages, generated from the command line.

use crate::output::{print, print_bytes};
use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// The name of the binary.
const NAME: &str = "causeway";

const COMPLETIONS: &str = "\
For this session:   source <(causeway completions bash)
In bash:            causeway completions bash > ~/.local/share/bash-completion/completions/causeway
In zsh:             causeway completions zsh > ~/.zfunc/_causeway      with fpath+=~/.zfunc before compinit
In fish:            causeway completions fish > ~/.config/fish/completions/causeway.fish
In elvish:          causeway completions elvish >> ~/.config/elvish/rc.elv
In PowerShell:      causeway completions powershell | Out-String | Invoke-Expression";

const MAN: &str = "\
One page:       causeway man | man -l -
For all users:  causeway man /usr/local/share/man/man1      then: man causeway, man causeway-add, man causeway-store-check";

/// `causeway completions`
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// `causeway man`
#[derive(Debug, Args)]
#[command(after_help = MAN)]
pub struct ManArgs {
    /// Write a page for each command to this folder, which is created if it does not exist [default: print the first
    /// page]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completion script of a shell.
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
    print(&format!("wrote the manual pages to {}\n", dir.display()))
}
