//! Instructions counted by valgrind's callgrind: the same on a busy machine as on an idle one.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::artifacts::system;
use crate::interrupt;

/// From a process's end to its profile, on a busy machine.
const PROFILE_TIMEOUT: Duration = Duration::from_secs(30);

/// `command` under callgrind, with its children: each process leaves its profile in `dir` when it ends.
pub fn profiled(command: &Command, dir: &Path) -> Result<Command> {
    system::require(&[system::VALGRIND])?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--trace-children=yes"]);
    valgrind.arg(format!("--callgrind-out-file={}", dir.join("%p").display()));
    valgrind.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => valgrind.env(name, value),
            None => valgrind.env_remove(name),
        };
    }
    Ok(valgrind)
}

/// The profile that process `pid` left in `dir`, once it is whole.
pub fn profile_of(pid: i32, dir: &Path) -> Result<String> {
    let (file, deadline) = (dir.join(pid.to_string()), Instant::now() + PROFILE_TIMEOUT);
    loop {
        let profile = std::fs::read_to_string(&file).unwrap_or_default();
        // The sum stands at the end.
        if profile.contains("\ntotals:") {
            return Ok(profile);
        }
        if Instant::now() > deadline {
            bail!("no profile in {} within {PROFILE_TIMEOUT:?}", file.display());
        }
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Instructions that an object (a program or a library) spent, by function; with those of what it called outside of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Instructions(pub BTreeMap<String, i64>);

impl Instructions {
    /// All of them.
    pub fn total(&self) -> i64 {
        self.0.values().sum()
    }

    /// What `self`, a run of more steps, spent more than `fewer`, for each of `steps` steps.
    pub fn per_step(&self, fewer: &Self, steps: i64) -> Self {
        let names = self.0.keys().chain(fewer.0.keys());
        let of = |counts: &Self, name| counts.0.get(name).copied().unwrap_or_default();
        Self(names.map(|name| (name.clone(), (of(self, name) - of(fewer, name)) / steps)).collect())
    }

    /// The functions that spend most.
    pub fn top(&self, count: usize) -> Vec<(&str, i64)> {
        let mut functions: Vec<_> = self.0.iter().map(|(name, &spent)| (name.as_str(), spent)).collect();
        functions.sort_by_key(|&(_, spent)| -spent);
        functions.truncate(count);
        functions
    }
}

/// Reads a profile (`--callgrind-out-file`) for what the object whose path ends with `object` spent itself, and in what
/// it called in other objects (libc's memcmp, say), except in those whose file name begins with `foreign`.
pub fn spent_by(profile: &str, object: &str, foreign: Option<&str>) -> Result<Instructions> {
    let mut reader = Reader { object, foreign, ..Reader::default() };
    for line in profile.lines() {
        reader.line(line).with_context(|| format!("callgrind's line {line:?}"))?;
    }
    Ok(reader.spent)
}

/// Names are given once, with a number, and from then on by the number: "(3) name", then "(3)".
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn resolve(&mut self, text: &str) -> Result<String> {
        let (number, name) = text.split_once(')').context("a name without a number")?;
        match name.trim_start() {
            "" => self.0.get(number).cloned().context("a number that was not named"),
            name => {
                self.0.insert(number.to_owned(), name.to_owned());
                Ok(name.to_owned())
            }
        }
    }
}

#[derive(Default)]
struct Reader<'a> {
    object: &'a str,
    foreign: Option<&'a str>,
    objects: Names,
    functions: Names,
    /// Where we are, and where the call that the next line counts leads.
    here: (String, String),
    called: (Option<String>, String),
    in_call: bool,
    spent: Instructions,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) -> Result<()> {
        match line.split_once('=') {
            Some(("ob", name)) => self.here.0 = self.objects.resolve(name)?,
            Some(("fn", name)) => self.here.1 = self.functions.resolve(name)?,
            Some(("cob", name)) => self.called.0 = Some(self.objects.resolve(name)?),
            Some(("cfn", name)) => self.called.1 = self.functions.resolve(name)?,
            Some(("calls", _)) => self.in_call = true,
            _ if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) => {
                self.count(line)?
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, line: &str) -> Result<()> {
        let cost = line.split(' ').nth(1).map_or(Ok(0), str::parse::<i64>).context("not a cost")?;
        let ours = self.here.0.ends_with(self.object);
        if !std::mem::take(&mut self.in_call) {
            if ours {
                *self.spent.0.entry(self.here.1.clone()).or_default() += cost;
            }
            return Ok(());
        }
        // Without an object of its own, what is called is in the caller's.
        if let Some(object) = self.called.0.take().filter(|_| ours) {
            let file = object.rsplit('/').next().unwrap_or_default();
            // What libc calls first is the whole program.
            let start = self.called.1.starts_with("__libc_start_main");
            let foreign = start || self.foreign.is_some_and(|prefix| file.starts_with(prefix));
            if !foreign && !object.ends_with(self.object) {
                *self.spent.0.entry(format!("{} ({file})", self.called.1)).or_default() += cost;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
events: Ir
ob=(1) /lib/ours.so
fl=(1) a.rs
fn=(1) encode
10 100
+1 5
cob=(2) /lib/libc.so.6
cfn=(2) memcmp
calls=3 0
12 30
cfn=(3) helper
calls=1 0
13 7
cob=(3) /lib/libggml-base.so
cfn=(4) compute
calls=1 0
14 1000
fn=(3)
20 7
ob=(2)
fn=(2)
0 30
";

    #[test]
    fn an_object_spends_what_it_does_and_what_it_has_libc_do() {
        let spent = spent_by(PROFILE, "ours.so", Some("libggml")).unwrap();
        assert_eq!(spent.total(), 100 + 5 + 30 + 7);
        assert_eq!(spent.top(2), [("encode", 105), ("memcmp (libc.so.6)", 30)]);
        assert_eq!(spent_by(PROFILE, "ours.so", None).unwrap().total(), 1142);
    }

    #[test]
    fn a_step_costs_what_more_steps_cost_more() {
        let few = Instructions([("start".to_owned(), 50), ("step".to_owned(), 10)].into());
        let many = Instructions([("start".to_owned(), 50), ("step".to_owned(), 110)].into());
        let step = many.per_step(&few, 10);
        assert_eq!((step.total(), step.top(1)), (10, vec![("step", 10)]));
    }
}
