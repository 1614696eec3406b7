//! `ferry shim install-agent`, `uninstall-agent` and `host-pref`. macOS's own tools do not exist here: stand-ins on PATH
//! keep their state in files, write down what they were asked, and fail where a test says so. That shows the order of
//! the steps and what each failure leaves behind, and nothing about launchd itself.
#![cfg(target_os = "linux")]

use ferry_shim_fixture::{Fixture, shim};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LABEL: &str = "org.example.llama";

/// Writes itself down, then fails if the file `fail` holds its first words.
const PREAMBLE: &str = r#"#!/bin/sh
name=$(basename "$0")
echo "$name $*" >> "$STATE/log"
if [ -e "$STATE/fail" ]; then
    while read -r start; do
        case "$name $*" in "$start"*) echo "no luck" >&2; exit 5;; esac
    done < "$STATE/fail"
fi
"#;
const LAUNCHCTL: &str = r#"
case "$1" in
    bootstrap) [ -e "$3" ] || exit 1; touch "$STATE/loaded";;
    bootout) rm "$STATE/loaded";;
    kickstart|print) [ -e "$STATE/loaded" ];;
    *) exit 64;;
esac
"#;
const PLUTIL: &str = r#"grep -q '</plist>' "$2""#;
const DEFAULTS: &str = r#"
case "$1" in
    read) cat "$STATE/preference" 2>/dev/null;;
    write) if [ -e "$STATE/deaf" ]; then exit 0; fi; echo 1 > "$STATE/preference";;
    delete) rm "$STATE/preference";;
esac
"#;
const PS: &str = r#"
echo "    1 /sbin/launchd"
if [ -e "$STATE/vm" ]; then
    echo "  721 /System/Library/Frameworks/Virtualization.framework/XPCServices/com.apple.Virtualization.VirtualMachine"
fi
"#;

/// One test's home folder and stand-in tools.
struct Mac {
    home: PathBuf,
}

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Mac {
    fn new(name: &str) -> Self {
        let home = PathBuf::from(Fixture::get().path(&format!("mac-{name}")));
        std::fs::create_dir_all(home.join("bin")).expect("a folder");
        for (tool, body) in [("launchctl", LAUNCHCTL), ("plutil", PLUTIL), ("defaults", DEFAULTS), ("ps", PS)]
        {
            let path = home.join("bin").join(tool);
            std::fs::write(&path, format!("{PREAMBLE}{body}")).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("executable");
        }
        Self { home }
    }

    fn ferry(&self, arguments: &[&str]) -> Outcome {
        let path = format!("{}:/usr/bin:/bin", self.home.join("bin").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferry"));
        command.arg("shim").args(arguments).env_clear().env("PATH", path).env("HOME", &self.home);
        command.env("STATE", &self.home).env("FERRY_SHIM_LIBRARY", shim());
        let Output { status, stdout, stderr } = command.output().expect("ferry starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    fn install(&self, options: &[&str]) -> Outcome {
        self.install_with(&[&["--family-max", "1007"], options].concat())
    }

    fn install_with(&self, options: &[&str]) -> Outcome {
        let program = Fixture::get().path("program");
        let fixed = ["install-agent", "--label", LABEL, "--app", "llama.cpp@b10167", "--experimental"];
        let host = ["--host-chip", "Apple M1", "--host-os", "26.6.1"];
        self.ferry(&[&fixed, &host[..], options, &["--", &program, "-m", "models/a & b.gguf"]].concat())
    }

    fn agent(&self) -> PathBuf {
        self.home.join(format!("Library/LaunchAgents/{LABEL}.plist"))
    }

    /// The agents' folder: nothing may be left behind there.
    fn agents(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.join("Library/LaunchAgents"));
        let names = entries.into_iter().flatten().map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    fn is_loaded(&self) -> bool {
        self.home.join("loaded").exists()
    }

    fn fail(&self, start: &str) {
        std::fs::write(self.home.join("fail"), format!("{start}\n")).expect("written");
    }

    /// What the tools were asked since the last call, by their first words.
    fn asked(&self) -> Vec<String> {
        let log = self.home.join("log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        _ = std::fs::remove_file(&log);
        text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    }

    fn preference(&self) -> Option<String> {
        std::fs::read_to_string(self.home.join("preference")).ok()
    }
}

#[test]
fn the_property_list_is_golden() {
    let mac = Mac::new("golden");
    let options = ["--dry-run", "--env", "GGML_LOG=a=b", "--working-directory", "/srv/models"];
    let outcome = mac.install_with(&options);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let key = outcome.stdout.lines().find(|line| line.contains("llama-cpp-default@")).expect("a key");
    let key = key.trim().trim_start_matches("<string>").trim_end_matches("</string>");
    let golden =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/agent.plist"))
            .expect("the golden file")
            .replace("@PROGRAM@", &Fixture::get().path("program"))
            .replace("@LIBRARY@", shim().to_str().expect("UTF-8"))
            .replace("@HOME@", mac.home.to_str().expect("UTF-8"))
            .replace("@KEY@", key);
    assert_eq!(outcome.stdout, golden);
    assert_eq!((mac.agents(), mac.asked()), (vec![], vec![]), "a dry run does nothing");
}

#[test]
fn an_agent_is_made_checked_loaded_started_and_removed() {
    let mac = Mac::new("whole");
    let outcome = mac.install(&[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("uninstall-agent --label org.example.llama"), "{}", outcome.stdout);
    assert_eq!(
        mac.asked(),
        ["plutil -lint", "launchctl bootstrap", "launchctl kickstart", "launchctl print"]
    );
    assert!(mac.is_loaded());
    assert_eq!(mac.agents(), ["org.example.llama.plist"]);
    let mode = std::fs::metadata(mac.agent()).expect("the agent").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);

    let outcome = mac.ferry(&["uninstall-agent", "--label", LABEL]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(mac.asked(), ["launchctl print", "launchctl bootout"]);
    assert_eq!((mac.is_loaded(), mac.agents()), (false, vec!["org.example.llama.plist.removed".to_owned()]));
}

#[test]
fn whatever_step_fails_leaves_nothing_behind() {
    for step in ["plutil", "launchctl bootstrap", "launchctl kickstart", "launchctl print"] {
        let mac = Mac::new(&format!("fails-{}", step.replace(' ', "-")));
        mac.fail(step);
        let outcome = mac.install(&[]);
        assert_eq!(outcome.code, Some(1), "{step}");
        assert!(!mac.is_loaded(), "{step}");
        assert_eq!(mac.agents(), Vec::<String>::new(), "{step}");
        assert!(
            outcome.stderr.contains("rolled back") && outcome.stderr.contains("no luck"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn a_failed_replacement_brings_the_previous_agent_back() {
    for step in ["plutil", "launchctl kickstart"] {
        let mac = Mac::new(&format!("replaces-{}", step.replace(' ', "-")));
        assert_eq!(mac.install(&[]).code, Some(0));
        let before = std::fs::read(mac.agent()).expect("the agent");
        mac.fail(step);
        let outcome = mac.install(&["--env", "A=B"]);
        assert_eq!(outcome.code, Some(1), "{step}");
        assert_eq!(std::fs::read(mac.agent()).expect("the agent"), before, "{step}");
        assert_eq!(mac.agents(), ["org.example.llama.plist"]);
        assert!(mac.is_loaded(), "{step}");
    }
    let mac = Mac::new("replaces");
    assert_eq!(mac.install(&[]).code, Some(0));
    assert_eq!(mac.install(&["--env", "A=B"]).code, Some(0));
    assert!(std::fs::read_to_string(mac.agent()).expect("the agent").contains("<key>A</key>"));
    assert_eq!(mac.agents(), ["org.example.llama.plist"]);
}

#[test]
fn a_failed_removal_leaves_the_agent_loaded() {
    let mac = Mac::new("removal");
    assert_eq!(mac.install(&[]).code, Some(0));
    mac.fail("launchctl bootout");
    assert_eq!(mac.ferry(&["uninstall-agent", "--label", LABEL]).code, Some(1));
    assert!(mac.is_loaded());
    assert_eq!(mac.agents(), ["org.example.llama.plist"]);
}

#[test]
fn other_peoples_agents_are_not_touched() {
    let mac = Mac::new("others");
    std::fs::create_dir_all(mac.agent().parent().expect("a folder")).expect("made");
    for text in [
        "<plist version=\"1.0\"><dict><key>Label</key><string>org.example.llama</string></dict></plist>",
        "<plist><array/></plist>",
        "bplist00 truncated",
        "",
    ] {
        std::fs::write(mac.agent(), text).expect("written");
        for outcome in [mac.install(&[]), mac.ferry(&["uninstall-agent", "--label", LABEL])] {
            assert_eq!(outcome.code, Some(1), "{text}");
            assert_eq!(std::fs::read_to_string(mac.agent()).expect("still there"), text);
        }
    }
    assert_eq!(mac.asked(), Vec::<String>::new());
    let none = mac.ferry(&["uninstall-agent", "--label", "org.example.none"]);
    assert!(none.stderr.contains("there is no agent"), "{}", none.stderr);
}

#[test]
fn malformed_labels_and_variables_are_refused() {
    let mac = Mac::new("malformed");
    for label in ["", "../evil", "a/b", "com.apple.x", ".hidden", "a b", &"x".repeat(200)] {
        assert_eq!(mac.ferry(&["uninstall-agent", "--label", label]).code, Some(2), "{label}");
    }
    assert_eq!(mac.install(&["--env", "=x"]).code, Some(2));
    for reserved in ["DYLD_INSERT_LIBRARIES=/x", "FERRY_METAL_STATUS=/x", "LUME_METAL_APPLE_FAMILY_MAX=1009"]
    {
        let outcome = mac.install(&["--env", reserved]);
        assert_eq!(outcome.code, Some(1));
        assert!(outcome.stderr.contains("belongs to the shim"), "{}", outcome.stderr);
    }
    let control = mac.install(&["--env", "A=\u{1}"]);
    assert_eq!(control.code, Some(1), "{}", control.stderr);
    assert_eq!(mac.agents(), Vec::<String>::new());
}

#[test]
fn the_host_preference_is_shown_set_and_deleted() {
    let mac = Mac::new("preference");
    let shown = mac.ferry(&["host-pref", "show"]);
    assert!(shown.stdout.contains("(not set)") && shown.stdout.contains("undocumented"), "{}", shown.stdout);
    let set = mac.ferry(&["host-pref", "set"]);
    assert_eq!(set.code, Some(0), "{}", set.stderr);
    assert!(set.stdout.contains("reports disagree") && set.stdout.contains("To undo this"), "{}", set.stdout);
    assert_eq!(mac.preference().as_deref(), Some("1\n"));
    assert_eq!(mac.ferry(&["host-pref", "delete"]).code, Some(0));
    assert_eq!(mac.preference(), None);
    assert_eq!(mac.ferry(&["host-pref", "delete"]).code, Some(0), "not set already");
}

#[test]
fn a_running_vm_forbids_changing_the_preference() {
    let mac = Mac::new("vm");
    std::fs::write(mac.home.join("vm"), "").expect("written");
    for command in ["set", "delete"] {
        let outcome = mac.ferry(&["host-pref", command]);
        assert_eq!(outcome.code, Some(1));
        assert!(
            outcome.stderr.contains("721") && outcome.stderr.contains("stop every one"),
            "{}",
            outcome.stderr
        );
    }
    assert_eq!(mac.ferry(&["host-pref", "show"]).code, Some(0));
    assert!(!mac.asked().iter().any(|asked| asked.contains("write") || asked.contains("delete")));
}

#[test]
fn a_preference_that_does_not_stick_is_an_error() {
    let mac = Mac::new("deaf");
    std::fs::write(mac.home.join("deaf"), "").expect("written");
    std::fs::write(mac.home.join("fail"), "defaults delete\n").expect("written");
    let outcome = mac.ferry(&["host-pref", "set"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("found None instead of Some(\"1\")"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("undoing 'writing the preference' failed too"), "{}", outcome.stderr);
}

#[test]
fn without_the_tools_of_macos_it_says_so() {
    let mac = Mac::new("bare");
    std::fs::remove_dir_all(mac.home.join("bin")).expect("removed");
    let outcome = mac.ferry(&["host-pref", "show"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("this needs macOS"), "{}", outcome.stderr);
}
