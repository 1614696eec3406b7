//! `cargo suite`: all tests, as a table of parts.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::artifacts::Store;
use crate::{checkout, interrupt, process};

/// All tests of the project, or the named parts of them.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo suite")]
pub struct Options {
    /// Parts to run; all but the long ones if none is named
    parts: Vec<String>,
    /// Run the long parts after the others
    #[arg(long)]
    long: bool,
    /// Say which parts there are
    #[arg(long)]
    list: bool,
    /// Go on after a part has failed
    #[arg(long)]
    keep_going: bool,
    /// What the long part is told: `cargo suite -- conformance -- --help` says what there is
    #[arg(last = true)]
    long_options: Vec<String>,
}

/// One part: cargo commands, run one after the other.
struct Part {
    name: &'static str,
    about: &'static str,
    /// Whether the things of others must be there before.
    artifacts: bool,
    commands: &'static [CargoCommand],
    /// Whether it takes so long that it has to be asked for.
    long: bool,
}

/// `cargo WORDS` with some environment.
struct CargoCommand {
    words: &'static str,
    environment: &'static [(&'static str, &'static str)],
}

const fn cargo(words: &'static str) -> CargoCommand {
    CargoCommand { words, environment: &[] }
}

/// Loom replaces the atomics of everything that it is compiled with: hence a target folder of its own.
const LOOM: &[(&str, &str)] = &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")];

/// OpenMP's threads spin at their barriers, and on a machine that does anything else beside, tokens then take
/// a hundred times as long. What is tested here are answers, not speeds.
const PATIENT_THREADS: &[(&str, &str)] = &[("OMP_WAIT_POLICY", "passive")];

/// What cargo-fuzz passes to the compiler: libFuzzer sees branches and comparisons, AddressSanitizer the memory. The
/// sanitizer is the one thing here that a stable compiler has but does not give away.
const FUZZING: &[(&str, &str)] = &[
    ("RUSTC_BOOTSTRAP", "1"),
    ("CARGO_TARGET_DIR", "target/fuzz"),
    (
        "RUSTFLAGS",
        "--cfg fuzzing -Zsanitizer=address -Cdebug-assertions -Cpasses=sancov-module \
         -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
         -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
         -Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    ),
];

/// Quickest first: what fails early saves the rest.
const PARTS: &[Part] = &[
    Part {
        name: "lint",
        about: "formatting, and clippy without a warning",
        artifacts: false,
        commands: &[
            cargo("fmt --all --check"),
            cargo("clippy --workspace --all-targets --quiet -- -D warnings"),
        ],
        long: false,
    },
    Part {
        name: "unit",
        about: "the crates' own tests, the harness's included",
        artifacts: false,
        commands: &[
            cargo(
                "test --release --workspace --exclude ferry-tests --exclude ferry-vm --exclude ferry-shim \
                 --exclude ferry-shim-contract --exclude ferry-shim-fixture --exclude ferry-shim-profiles \
                 --exclude ferry-metal-capabilities --exclude ferry-cli",
            ),
            cargo("test --release --package ferry-tests --lib"),
        ],
        long: false,
    },
    Part {
        name: "loom",
        about: "the ring under every interleaving",
        artifacts: false,
        commands: &[CargoCommand {
            words: "test --release --package ferry-protocol --test loom",
            environment: LOOM,
        }],
        long: false,
    },
    Part {
        name: "fuzz",
        about: "a minute of a hostile guest's commands to the virtio-gpu device, under AddressSanitizer",
        artifacts: false,
        // A target keeps build scripts as they are. The search for leaks, after each program, would take nearly all of
        // the time: the device has a thread of its own, whose memory is on its way back when the program ends.
        commands: &[CargoCommand {
            words: "run --quiet --release --manifest-path host/fuzz/Cargo.toml --target host-tuple \
                    --bin control_queue -- -max_total_time=60 -max_len=1024 -detect_leaks=0 -verbosity=0 \
                    -print_final_stats=1 -create_missing_dirs=1 -artifact_prefix=target/fuzz/findings/ \
                    target/fuzz/corpus host/fuzz/seeds/control_queue",
            environment: FUZZING,
        }],
        long: false,
    },
    Part {
        name: "shim",
        about: "the Metal capability shim: its runtime tests, and its Mach-O files",
        artifacts: false,
        commands: &[
            cargo(
                "test --release --package ferry-shim --package ferry-shim-contract --package ferry-shim-fixture \
                 --package ferry-shim-profiles --package ferry-metal-capabilities --package ferry-cli",
            ),
            cargo("test --release --package ferry-shim --features macho --test macho"),
        ],
        long: false,
    },
    Part {
        name: "e2e",
        about: "stock llama.cpp through the plug-in and the daemon",
        artifacts: true,
        // One at a time: each uses all the cores there are, and some have deadlines.
        commands: &[CargoCommand {
            words: "test --release --package ferry-tests --test e2e -- --test-threads 1",
            environment: PATIENT_THREADS,
        }],
        long: false,
    },
    Part {
        name: "budget",
        about: "what Ferry may cost: instructions, memory, nothing when idle",
        artifacts: true,
        commands: &[CargoCommand {
            words: "test --release --package ferry-tests --test budget -- --test-threads 1",
            environment: PATIENT_THREADS,
        }],
        long: false,
    },
    Part {
        name: "vm",
        about: "guests in virtual machines",
        artifacts: true,
        commands: &[
            // An emulated machine keeps one core busy, and these compute nothing on the host beside it.
            cargo("test --release --package ferry-vm -- --test-threads 2"),
            CargoCommand {
                words: "test --release --package ferry-tests --test vm -- --test-threads 1",
                environment: PATIENT_THREADS,
            },
        ],
        long: false,
    },
    Part {
        name: "conformance",
        about: "llama.cpp's own suites, its programs and every release of it, through Ferry; writes a table",
        artifacts: true,
        commands: &[CargoCommand {
            words: "run --quiet --release --package ferry-tests --bin conformance --",
            environment: PATIENT_THREADS,
        }],
        long: true,
    },
];

/// Runs the parts asked for.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        for part in PARTS {
            println!("{:13}{}{}", part.name, part.about, if part.long { " (--long)" } else { "" });
        }
        return Ok(ExitCode::SUCCESS);
    }
    let parts = select(&options.parts, options.long)?;
    interrupt::install()?;
    if parts.iter().any(|part| part.artifacts) {
        let store = Store::open()?;
        store.model()?;
        store.llama()?;
        store.llama_next()?;
        checkout::binaries()?;
    }
    let mut failed = Vec::new();
    for part in parts {
        eprintln!("━━ {}: {}", part.name, part.about);
        let started = Instant::now();
        let more = if part.long { options.long_options.as_slice() } else { &[] };
        let passed = run_part(part, more)?;
        eprintln!("━━ {}: {} ({:.0} s)\n", part.name, verdict(passed), started.elapsed().as_secs_f64());
        if !passed {
            failed.push(part.name);
            if !options.keep_going {
                break;
            }
        }
    }
    if failed.is_empty() {
        eprintln!("suite: passed");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("suite: FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn verdict(passed: bool) -> &'static str {
    if passed { "passed" } else { "FAILED" }
}

fn select(names: &[String], long: bool) -> Result<Vec<&'static Part>> {
    if let Some(unknown) = names.iter().find(|&name| PARTS.iter().all(|part| part.name != name)) {
        let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        bail!("there is no part {unknown:?}; there are: {}", known.join(", "));
    }
    let wanted = |part: &&Part| match names {
        [] => long || !part.long,
        names => names.iter().any(|name| name == part.name) || long && part.long,
    };
    Ok(PARTS.iter().filter(wanted).collect())
}

fn run_part(part: &Part, more: &[String]) -> Result<bool> {
    for command in part.commands {
        let mut cargo: Command = checkout::cargo();
        cargo.args(command.words.split(' ')).args(more).envs(command.environment.iter().copied());
        eprintln!("   cargo {}", command.words);
        let status = process::attend(&mut cargo)?;
        if !status.success() {
            eprintln!("   cargo {} ended with {status}", command.words);
            if status.signal().is_some() {
                bail!("cargo was ended by a signal");
            }
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_selected_by_name_and_unknown_names_are_errors() {
        assert_eq!(select(&[], true).unwrap().len(), PARTS.len());
        let ordinary = select(&[], false).unwrap();
        assert_eq!(ordinary.iter().map(|part| part.name).next_back(), Some("vm"));
        let names = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.into()).collect();
            select(&wanted, false).map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["e2e", "lint"]).unwrap(), ["lint", "e2e"]);
        assert_eq!(names(&["conformance"]).unwrap(), ["conformance"]);
        assert!(names(&["lnit"]).unwrap_err().to_string().contains("lint"));
    }
}
