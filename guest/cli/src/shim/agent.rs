//! LaunchAgents: the property list that runs one program with the shim.
//!
//! The variables are set for this one program. A session-wide `launchctl setenv` would insert the shim into every
//! program of the session.

use super::run::Environment;
use anyhow::{Context, Result, bail, ensure};
use ferry_shim_contract::config;
use plist::{Dictionary, Value};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable by which macOS inserts libraries. Agents exist on macOS only.
const INSERT_VARIABLE: &str = "DYLD_INSERT_LIBRARIES";
/// Longest label: a file name of 255 bytes must hold it and its endings.
const LABEL_LENGTH_MAX: usize = 128;
/// Largest property list that is read, in bytes.
const FILE_LENGTH_MAX: u64 = 1 << 20;

/// A workload's label, like `org.example.llama`.
#[derive(Clone, Debug)]
pub struct Label(String);

impl std::str::FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'.' || c == b'-' || c == b'_';
        let is_name = !text.is_empty() && text.len() <= LABEL_LENGTH_MAX && text.bytes().all(is_allowed);
        if !is_name || text.starts_with('.') || text.starts_with("com.apple.") {
            return Err(format!(
                "want up to {LABEL_LENGTH_MAX} letters, digits, '.', '-' and '_', not starting with '.' or com.apple."
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Label {
    /// The label itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where the user's agents are.
    pub fn path(&self, home: &Path) -> PathBuf {
        home.join("Library/LaunchAgents").join(format!("{}.plist", self.0))
    }

    /// The workload's log of this kind (`out`, `err`, `shim`).
    pub fn log(&self, home: &Path, kind: &str) -> PathBuf {
        home.join("Library/Logs").join(format!("{}.{kind}.log", self.0))
    }
}

/// What an agent runs.
pub struct Agent<'a> {
    /// Its label.
    pub label: &'a Label,
    /// The user's home folder.
    pub home: &'a Path,
    /// Absolute path of the program, and its arguments.
    pub program: &'a [OsString],
    /// The shim.
    pub library: &'a Path,
    /// The shim's variables.
    pub shim: &'a Environment,
    /// The program's own variables.
    pub own: &'a [(String, String)],
    /// Its working directory.
    pub folder: Option<&'a Path>,
}

impl Agent<'_> {
    /// The property list, as XML.
    pub fn to_xml(&self) -> Result<Vec<u8>> {
        let mut environment = Dictionary::new();
        for (name, value) in self.own {
            ensure!(!is_reserved(name), "{name} belongs to the shim: leave it to this command");
            environment.insert(name.clone(), text(value.as_ref())?);
        }
        environment.insert(INSERT_VARIABLE.into(), text(self.library.as_os_str())?);
        for (name, value) in self.shim {
            environment.insert((*name).to_owned(), text(value)?);
        }
        let program: Result<Vec<Value>> = self.program.iter().map(|word| text(word)).collect();
        let mut agent = Dictionary::new();
        agent.insert("Label".into(), Value::String(self.label.0.clone()));
        agent.insert("ProgramArguments".into(), Value::Array(program?));
        agent.insert("EnvironmentVariables".into(), Value::Dictionary(environment));
        if let Some(folder) = self.folder {
            agent.insert("WorkingDirectory".into(), text(folder.as_os_str())?);
        }
        agent.insert("RunAtLoad".into(), Value::Boolean(true));
        agent.insert("StandardOutPath".into(), text(self.label.log(self.home, "out").as_os_str())?);
        agent.insert("StandardErrorPath".into(), text(self.label.log(self.home, "err").as_os_str())?);
        let mut xml = Vec::new();
        Value::Dictionary(agent).to_writer_xml(&mut xml).context("writing the property list")?;
        xml.push(b'\n');
        Ok(xml)
    }
}

fn is_reserved(name: &str) -> bool {
    let ours = |variable: &config::Variable| variable.name == name || variable.reference == Some(name);
    name.starts_with("DYLD_") || config::ALL.iter().any(ours)
}

fn text(value: &std::ffi::OsStr) -> Result<Value> {
    let text = value.to_str().with_context(|| format!("{} is not UTF-8", value.display()))?;
    // XML has no way to write them, and launchd would refuse the file.
    ensure!(
        !text.chars().any(|c| c.is_control() && !"\t\n\r".contains(c)),
        "{text:?} has a control character"
    );
    Ok(Value::String(text.to_owned()))
}

/// Fails unless the file at `path` is an agent of this label that inserts the shim: nothing else is touched.
pub fn ensure_ours(path: &Path, label: &Label) -> Result<()> {
    let length =
        std::fs::metadata(path).with_context(|| format!("there is no agent at {}", path.display()))?.len();
    ensure!(length <= FILE_LENGTH_MAX, "{}: {length} bytes are more than an agent has", path.display());
    let value = Value::from_file(path).with_context(|| format!("{} is no property list", path.display()))?;
    let field = |key| value.as_dictionary().and_then(|agent| agent.get(key));
    let environment = field("EnvironmentVariables").and_then(Value::as_dictionary);
    let is_ours = environment.is_some_and(|names| {
        [INSERT_VARIABLE, config::FAMILY_MAX.name].iter().all(|name| names.contains_key(name))
    });
    if !is_ours || field("Label").and_then(Value::as_string) != Some(label.as_str()) {
        bail!(
            "{} is not an agent that install-agent made: leave it, or move it away yourself",
            path.display()
        );
    }
    Ok(())
}
