//! The conformance run: llama.cpp's own suites, its programs and its releases through Ferry, as rows of what passed.
//!
//! It is the long part of `cargo suite`, and a program of its own for a machine that has a build of llama.cpp, but no cargo
//! and no network: one with a GPU, say. The rows of such a run can be merged into the table of another.

mod answers;
mod architectures;
mod builds;
mod operations;
mod perplexity;
mod row;
mod server;
mod site;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::checkout::{self, Binaries};
use crate::interrupt;
use row::{Row, Tally};
use site::Site;

/// llama.cpp's suites, programs and releases through Ferry: what passes
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "conformance")]
pub struct Options {
    /// Suites to run instead of all
    #[arg(long, value_name = "SUITE", value_delimiter = ',', num_args = 1..)]
    only: Vec<String>,
    /// Say which suites there are
    #[arg(long)]
    list: bool,
    /// The back-end that the daemon loads, and that Ferry is compared with
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// A folder with llama.cpp's programs and libraries, instead of the one built from the artifact store
    #[arg(long, value_name = "DIR", requires_all = ["ferryd", "plugin"])]
    llama: Option<PathBuf>,
    /// What that build is called [default: the folder's name]
    #[arg(long, value_name = "NAME")]
    build: Option<String>,
    /// A daemon to use instead of building it
    #[arg(long, value_name = "FILE", requires = "plugin")]
    ferryd: Option<PathBuf>,
    /// A plug-in to use instead of building it
    #[arg(long, value_name = "FILE", requires = "ferryd")]
    plugin: Option<PathBuf>,
    /// Models' files, instead of SmolLM2 and Gemma 3 from the artifact store; most suites use the first
    #[arg(long, value_name = "FILE", value_delimiter = ',', num_args = 1..)]
    models: Vec<PathBuf>,
    /// Operations to test instead of all, as test-backend-ops takes them: ADD,MUL_MAT
    #[arg(long, value_name = "NAMES")]
    operations: Option<String>,
    /// Threads of `test-backend-ops test`, each with a stream of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,
    /// Where the rows go [default: target/conformance.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rows of other runs to begin with; what is run takes their place
    #[arg(long, value_name = "FILE", num_args = 1..)]
    merge: Vec<PathBuf>,
    /// Run nothing: only merge
    #[arg(long, requires = "merge", conflicts_with = "only")]
    no_run: bool,
    /// Write the table into README.md
    #[arg(long)]
    readme: bool,
    /// The commit that the rows are from [default: what git says]
    #[arg(long, value_name = "TEXT")]
    commit: Option<String>,
}

impl Options {
    /// What to type for these rows.
    fn command(&self) -> String {
        match &self.llama {
            Some(_) => format!("conformance --llama … --backend {}", self.backend),
            None if self.backend == "cpu" => "cargo suite -- conformance".into(),
            None => format!("cargo suite -- conformance -- --backend {}", self.backend),
        }
    }
}

/// One suite.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// Programs of llama.cpp that it runs.
    programs: &'static [&'static str],
    needs: Needs,
    run: fn(&Site) -> Result<Vec<Row>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    /// A model with a vocabulary.
    Model,
    /// The model that the adapter is for, as the first one.
    SmolLm2,
    /// Releases from the artifact store, whose back-end is the CPU's.
    Store,
}

/// Quickest first: what fails early is seen early.
const SUITES: &[Suite] = &[
    Suite {
        name: "support",
        about: "test-backend-ops support: what the back-end supports",
        programs: &["test-backend-ops"],
        needs: Needs::Nothing,
        run: operations::support,
    },
    Suite {
        name: "perf",
        about: "test-backend-ops perf: a few operations, timed",
        programs: &["test-backend-ops"],
        needs: Needs::Nothing,
        run: operations::perf,
    },
    Suite {
        name: "models",
        about: "answers of each model",
        programs: &["llama-completion"],
        needs: Needs::Model,
        run: answers::models,
    },
    Suite {
        name: "choices",
        about: "answers with flash attention, quantised caches, partial offload, …",
        programs: &["llama-completion"],
        needs: Needs::Model,
        run: answers::choices,
    },
    Suite {
        name: "lora",
        about: "an answer with an adapter",
        programs: &["llama-completion"],
        needs: Needs::SmolLm2,
        run: answers::adapter,
    },
    Suite {
        name: "devices",
        about: "a model split over the devices of three machines",
        programs: &["llama-completion", "ggml-rpc-server"],
        needs: Needs::Model,
        run: answers::devices,
    },
    Suite {
        name: "threads",
        about: "test-thread-safety",
        programs: &["test-thread-safety"],
        needs: Needs::Model,
        run: answers::many_threads,
    },
    Suite {
        name: "server",
        about: "llama-server with four slots, and its embeddings",
        programs: &["llama-server"],
        needs: Needs::Model,
        run: server::test,
    },
    Suite {
        name: "perplexity",
        about: "llama-perplexity on a text",
        programs: &["llama-perplexity"],
        needs: Needs::Model,
        run: perplexity::test,
    },
    Suite {
        name: "archs",
        about: "test-llama-archs: every architecture",
        programs: &["test-llama-archs"],
        needs: Needs::Nothing,
        run: architectures::test,
    },
    Suite {
        name: "builds",
        about: "every release of llama.cpp as a guest of every other",
        programs: &[],
        needs: Needs::Store,
        run: builds::test,
    },
    Suite {
        name: "operations",
        about: "test-backend-ops test: every operation",
        programs: &["test-backend-ops"],
        needs: Needs::Nothing,
        run: operations::test,
    },
];

/// Runs the suites and writes down what passed.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.list {
        SUITES.iter().for_each(|suite| println!("{:12}{}", suite.name, suite.about));
        return Ok(ExitCode::SUCCESS);
    }
    let suites = selected(&options.only)?;
    interrupt::install()?;
    let mut rows = Vec::new();
    for file in &options.merge {
        row::merge(&mut rows, row::read(file)?);
    }
    let json = options.json.clone().unwrap_or_else(|| checkout::target().join("conformance.json"));
    if !options.no_run {
        run_suites(options, &suites, &mut rows, &json)?;
    }
    row::write(&json, &rows)?;
    if options.readme {
        table::write_readme(&checkout::root().join("README.md"), &rows)?;
    }
    print!("\n{}", table::text(&rows));
    println!("\nwritten to {}", json.display());
    Ok(judge(&rows))
}

fn run_suites(options: &Options, suites: &[&Suite], rows: &mut Vec<Row>, json: &Path) -> Result<()> {
    if let (Some(ferryd), Some(plugin)) = (&options.ferryd, &options.plugin) {
        checkout::use_binaries(Binaries { ferryd: site::found(ferryd)?, plugin: site::found(plugin)? });
    }
    let site = Site::open(options)?;
    for suite in suites {
        if let Some(missing) = site.lacks(suite, options.llama.is_some()) {
            ensure!(options.only.is_empty() && options.llama.is_some(), "{}: {missing}", suite.name);
            eprintln!("  {} is left out: {missing}", suite.name);
            continue;
        }
        let found = (suite.run)(&site);
        interrupt::check()?;
        let found = found.unwrap_or_else(|error| {
            let mut tally = Tally::default();
            tally.count("the suite itself", Err(error));
            vec![site.row(suite.about, tally)]
        });
        found
            .iter()
            .flat_map(Row::complaint)
            .for_each(|complaint| eprintln!("✗ {}: {complaint}", suite.name));
        // What said that the suite could not run is over.
        rows.retain(|row| row.suite != suite.about || row.backend != site.backend);
        row::merge(rows, found);
        // What was found so far is kept, whatever becomes of the rest.
        row::write(json, rows)?;
    }
    Ok(())
}

impl Site {
    /// What this site has not and `suite` needs.
    fn lacks(&self, suite: &Suite, is_foreign: bool) -> Option<String> {
        if let Some(program) = suite.programs.iter().find(|program| !self.llama.bin.join(program).exists()) {
            return Some(format!("there is no {program} in {}", self.llama.bin.display()));
        }
        match suite.needs {
            Needs::Model if self.models.is_empty() => Some("no model was named (--models FILE)".into()),
            Needs::SmolLm2 if !self.has_smollm2() => Some("the first model is not SmolLM2-135M".into()),
            Needs::Store if is_foreign || self.backend != "cpu" => {
                Some("its releases are for the CPU".into())
            }
            _ => None,
        }
    }
}

fn selected(only: &[String]) -> Result<Vec<&'static Suite>> {
    let known = || SUITES.iter().map(|suite| suite.name);
    let unknown = only.iter().find(|&name| known().all(|known| known != name));
    ensure!(
        unknown.is_none(),
        "there is no suite {:?}; there are: {}",
        unknown.map_or("", String::as_str),
        known().collect::<Vec<_>>().join(", ")
    );
    Ok(SUITES.iter().filter(|suite| only.is_empty() || only.iter().any(|name| name == suite.name)).collect())
}

fn judge(rows: &[Row]) -> ExitCode {
    let bad: Vec<&Row> = rows.iter().filter(|row| row.complaint().is_some()).collect();
    for row in &bad {
        let complaint = row.complaint().unwrap_or_default();
        eprintln!("conformance: {}, {} to {}, {}: {complaint}", row.suite, row.client, row.host, row.backend);
    }
    match (rows.is_empty(), bad.is_empty()) {
        (false, true) => {
            eprintln!("conformance: passed");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("conformance: FAILED");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_options_require_of_one_another_exists() {
        use clap::{CommandFactory, Parser};
        <Options as CommandFactory>::command().debug_assert();
        assert!(Options::try_parse_from(["conformance", "--llama", "dir"]).is_err());
        assert!(Options::try_parse_from(["conformance", "--no-run"]).is_err());
        let merge = ["conformance", "--no-run", "--merge", "a", "--merge", "b", "--readme"];
        assert_eq!(Options::try_parse_from(merge).unwrap().merge.len(), 2);
    }

    #[test]
    fn suites_are_selected_by_name_and_unknown_names_are_errors() {
        assert_eq!(selected(&[]).unwrap().len(), SUITES.len());
        let found = selected(&["operations".into(), "support".into()]).unwrap();
        assert_eq!(found.iter().map(|suite| suite.name).collect::<Vec<_>>(), ["support", "operations"]);
        assert!(selected(&["oprations".into()]).err().unwrap().to_string().contains("operations"));
    }
}
