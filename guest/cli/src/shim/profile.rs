//! `ferry shim profile`.

use super::claim;
use anyhow::{Context, Result};
use ferry_shim_profiles::{Catalogue, Profile, Standing};
use std::path::PathBuf;
use std::process::ExitCode;

/// The subcommands of `ferry shim profile`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List the built-in profiles.
    List,
    /// Show one profile with its evidence.
    Show {
        /// Its id.
        id: String,
    },
    /// Say what would be claimed for a combination, or why nothing would.
    Match(claim::ClaimArguments),
    /// Check a file of profiles.
    Check {
        /// The file.
        path: PathBuf,
    },
}

/// Runs a subcommand.
pub fn run(command: &Command) -> Result<ExitCode> {
    let mut catalogue = Catalogue::built_in()?;
    match command {
        Command::List => catalogue.profiles().iter().for_each(list),
        Command::Show { id } => {
            let profile = catalogue.find(id).with_context(|| format!("there is no profile '{id}'"))?;
            show(profile);
        }
        Command::Match(arguments) => {
            let claim = arguments.claim(None)?;
            println!("profile={}", claim.key);
            println!("apple_family_max={}", claim.family_max);
            println!(
                "threadgroup_memory={}",
                claim.threadgroup_memory.map_or("stock".into(), |bytes| bytes.to_string())
            );
        }
        Command::Check { path } => {
            println!("{}: {} well-formed profiles", path.display(), catalogue.add_file(path)?)
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(profile: &Profile) {
    let claim = profile.apple_family_max.map_or("nothing".into(), |family| format!("family {family}"));
    println!("{}\t{} {}\t{}\t{claim}", profile.id, profile.app, profile.builds(), standing(profile.standing));
}

fn show(profile: &Profile) {
    list(profile);
    println!("key\t{}", profile.key());
    println!("api\t{}", profile.api);
    println!("host\t{} with macOS {}", profile.host_chips.join(", "), profile.host_os.join(", "));
    println!("guest\t{}", profile.guest_builds.join(", "));
    let memory = profile.threadgroup_memory.map_or("stock".into(), |bytes| format!("{bytes} bytes"));
    println!("threadgroup memory\t{memory}");
    println!("\n{}", profile.note.trim());
    for evidence in &profile.evidence {
        println!(
            "\n{:?}, {}: {}\nsha256 {}",
            evidence.kind,
            evidence.date,
            evidence.what.trim(),
            evidence.sha256
        );
    }
    if !profile.arms.is_empty() {
        println!("\nArms that would settle it:");
    }
    for arm in &profile.arms {
        println!("  {}", arm.name);
    }
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Measured => "measured",
        Standing::Derived => "derived, needs --experimental",
        Standing::NoGain => "measured, no gain",
    }
}
