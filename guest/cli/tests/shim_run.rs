//! `ferry shim run`, `probe` and `profile` against the model of Metal.
#![cfg(target_os = "linux")]

use ferry_shim_fixture::{Fixture, shim};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Host and guest of the published measurements, but for the guest's build, which is this machine's.
const HOST: [&str; 4] = ["--host-chip", "Apple M1 Ultra", "--host-os", "26.6.1"];
const RAISED: &str = "default families 1001 1005 1006 1007 2001 3001 3003";

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// `ferry shim ARGUMENTS`, with the fixture's driver in its environment and a home of its own.
fn ferry(arguments: &[&str]) -> Command {
    let fixture = Fixture::get();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferry"));
    command
        .arg("shim")
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", fixture.path("home"))
        .env("FERRY_SHIM_LIBRARY", shim())
        .env("FIXTURE_BUNDLE", fixture.path("inherits.bundle"));
    command
}

fn go(command: &mut Command) -> Outcome {
    let Output { status, stdout, stderr } = command.output().expect("ferry starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// `ferry shim run OPTIONS -- PROGRAM ARGUMENTS` as an experiment on the published host.
fn run(options: &[&str], program: &[&str]) -> Outcome {
    let arguments =
        [&["run", "--app", "llama.cpp@b10167", "--experimental"], &HOST[..], options, &["--"], program];
    go(&mut ferry(&arguments.concat()))
}

fn program() -> String {
    Fixture::get().path("program")
}

#[test]
fn a_program_runs_with_raised_answers() {
    let outcome = run(&[], &[&program(), "print"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains(RAISED), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("default memory 32768"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("experiment: "), "{}", outcome.stderr);
}

#[test]
fn an_unmeasured_combination_is_refused() {
    let refused =
        go(&mut ferry(&[&["run", "--app", "llama.cpp@b10167"], &HOST[..], &["--", &program()]].concat()));
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""));
    assert!(
        refused.stderr.contains("was never measured") && refused.stderr.contains("--experimental"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_is_not_known_must_be_said() {
    let without_app = go(&mut ferry(&[&["run"], &HOST[..], &["--", &program()]].concat()));
    assert_eq!(without_app.code, Some(78));
    assert!(without_app.stderr.contains("--app NAME@BUILD"), "{}", without_app.stderr);
    let without_chip = go(&mut ferry(&["run", "--app", "llama.cpp@b1", "--", &program()]));
    assert_eq!(without_chip.code, Some(78));
    assert!(without_chip.stderr.contains("--host-chip"), "{}", without_chip.stderr);
    let unknown_chip = go(&mut ferry(&[
        "run",
        "--app",
        "llama.cpp@b1",
        "--experimental",
        "--host-chip",
        "Apple M99",
        "--",
        &program(),
    ]));
    assert_eq!(unknown_chip.code, Some(78));
    assert!(unknown_chip.stderr.contains("known: Apple M1"), "{}", unknown_chip.stderr);
    let bad_build =
        go(&mut ferry(&[&["run", "--app", "llama.cpp@new"], &HOST[..], &["--", &program()]].concat()));
    assert_eq!(bad_build.code, Some(1));
    assert!(bad_build.stderr.contains("want b10167"), "{}", bad_build.stderr);
}

#[test]
fn arms_of_a_comparison_can_be_run() {
    let arm = run(&["--family-max", "1009", "--threadgroup-memory", "65536"], &[&program(), "print"]);
    assert!(arm.stdout.contains("1007 1008 1009 2001"), "{}", arm.stdout);
    assert!(arm.stdout.contains("default memory 65536"), "{}", arm.stdout);
    let without = go(&mut ferry(
        &[&["run", "--app", "llama.cpp@b1", "--family-max", "1009"], &HOST[..], &["--", &program()]].concat(),
    ));
    assert_eq!(without.code, Some(78));
}

#[test]
fn the_programs_own_exit_status_is_passed_on() {
    assert_eq!(run(&[], &[&program(), "exit", "3"]).code, Some(3));
    assert_eq!(run(&[], &[&program(), "signal", "15"]).code, Some(143));
}

#[test]
fn a_program_that_ignores_insertion_is_noticed() {
    // A static program ignores LD_PRELOAD as a hardened one ignores DYLD_INSERT_LIBRARIES.
    let path = Fixture::get().path("static");
    let source = Fixture::get().path("static.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("written");
    let built = Command::new("gcc-12").args(["-static", "-o", &path, &source]).status().expect("gcc-12");
    assert!(built.success());
    let ignored = run(&[], &[&path]);
    assert_eq!(ignored.code, Some(0));
    assert!(
        ignored.stderr.contains("was never loaded: the program ignores inserted libraries"),
        "{}",
        ignored.stderr
    );
}

#[test]
fn what_the_shim_says_is_passed_on() {
    let program = program();
    let idle = run(&[], &[&program, "idle"]);
    assert!(idle.stderr.contains("made no Metal device"), "{}", idle.stderr);
    let arguments =
        [&["run", "--app", "llama.cpp@b10167", "--experimental"], &HOST[..], &["--", &program, "print"]]
            .concat();
    let real = go(ferry(&arguments).env("FIXTURE_CLASS", "AGXG13Device"));
    assert!(real.stderr.contains("AGXG13Device is not AppleParavirtDevice"), "{}", real.stderr);
    let other = go(ferry(&arguments).env("FIXTURE_BUNDLE", Fixture::get().path("int_family.bundle")));
    assert!(other.stderr.contains("was not used (failed)"), "{}", other.stderr);
}

#[test]
fn the_status_file_can_be_kept_and_old_lines_do_not_count() {
    let path = Fixture::get().path("kept-status");
    assert_eq!(run(&["--status", &path], &[&program(), "print"]).code, Some(0));
    let first = std::fs::read_to_string(&path).expect("kept");
    assert!(first.contains(": installed: apple_family_max=1007 threadgroup_memory=32768"), "{first}");
    let second = run(&["--status", &path], &[&program(), "idle"]);
    assert!(second.stderr.contains("made no Metal device"), "{}", second.stderr);
}

#[test]
fn required_asks_for_a_token_and_takes_the_probes() {
    let home = Fixture::get().path("home-required");
    let with_home = |words: &[&str]| {
        let arguments =
            [&words[..1], &["--app", "llama.cpp@b10167", "--experimental"], &HOST[..], &words[1..]].concat();
        let mut command = ferry(&arguments);
        command.env("HOME", &home);
        command
    };
    let program = program();
    let required = ["run", "--required", "--", &program, "print"];
    let without = go(&mut with_home(&required));
    assert_eq!(without.code, Some(78));
    assert!(without.stderr.contains("ferry shim probe --honour"), "{}", without.stderr);

    let probe = probe_program();
    let probe = probe.to_str().expect("UTF-8");
    let preload = Fixture::get().path("libMetal.so");
    let dishonest = go(with_home(&["probe", "--honour", "--program", probe])
        .env("LD_PRELOAD", &preload)
        .env("FIXTURE_FAULT", "wrong:check_bfloat"));
    assert_eq!(dishonest.code, Some(1), "{}", dishonest.stdout);
    assert_eq!(go(&mut with_home(&required)).code, Some(78));
    let honest = go(with_home(&["probe", "--honour", "--program", probe]).env("LD_PRELOAD", &preload));
    assert_eq!(honest.code, Some(0), "{}{}", honest.stdout, honest.stderr);

    let with = go(&mut with_home(&required));
    assert_eq!(with.code, Some(0), "{}", with.stderr);
    assert!(with.stdout.contains(RAISED), "{}", with.stdout);
    // Required, but nothing to install on: the program must not pass for a success.
    let real = go(with_home(&required).env("FIXTURE_CLASS", "AGXG13Device"));
    assert_eq!(real.code, Some(78), "{}", real.stdout);
    let idle = go(&mut with_home(&["run", "--required", "--", &program, "idle"]));
    assert_eq!(idle.code, Some(78), "{}", idle.stderr);
}

/// The probe, which cargo builds with the workspace: beside `ferry`.
fn probe_program() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_ferry")).with_file_name("metal-capabilities");
    if !path.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--package", "ferry-metal-capabilities"]);
        if path.ancestors().nth(1).is_some_and(|folder| folder.ends_with("release")) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success(), "cargo build --package ferry-metal-capabilities");
    }
    path
}

#[test]
fn the_probe_runs_with_and_without_the_shim() {
    let probe = probe_program();
    let run = |options: &[&str]| {
        let program = ["--program", probe.to_str().expect("UTF-8")];
        let arguments =
            [&["probe", "--app", "llama.cpp@b1", "--experimental"], &HOST[..], options, &program].concat();
        go(ferry(&arguments).env("LD_PRELOAD", Fixture::get().path("libMetal.so")))
    };
    let shimmed = run(&[]);
    assert_eq!(shimmed.code, Some(0), "{}", shimmed.stderr);
    assert!(shimmed.stdout.contains("family=1007\nsupports_family=true\n"), "{}", shimmed.stdout);
    let stock = run(&["--stock"]);
    assert_eq!(stock.code, Some(1));
    assert!(
        stock.stdout.contains("supports_family=false\n") && stock.stdout.contains("shim=none"),
        "{}",
        stock.stdout
    );
}

#[test]
fn a_library_that_is_not_the_shim_is_refused() {
    let program = program();
    let with = |library: &str| {
        go(ferry(&[&["run", "--app", "llama.cpp@b1"], &HOST[..], &["--", &program]].concat())
            .env("FERRY_SHIM_LIBRARY", library))
    };
    let other = with(&Fixture::get().path("add_method.so"));
    assert_eq!(other.code, Some(78));
    assert!(other.stderr.contains("no Ferry shim"), "{}", other.stderr);
    let text = with(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    assert_eq!(text.code, Some(78));
    let none = with("/nonexistent.dylib");
    assert!(none.stderr.contains("name one with --library"), "{}", none.stderr);
}

#[test]
fn a_script_is_refused_by_name_of_its_interpreter() {
    let path = Fixture::get().path("wrapper");
    std::fs::write(&path, "#!/bin/sh\nexec llama-server\n").expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("executable");
    let refused = run(&[], &[&path]);
    assert_eq!(refused.code, Some(78));
    assert!(refused.stderr.contains("a script for /bin/sh"), "{}", refused.stderr);
}

#[test]
fn llama_cpp_is_asked_for_its_build() {
    let path = Fixture::get().path("llama-bench");
    let source = Fixture::get().path("llama-bench.c");
    let code = "#include <stdio.h>\nint main(void) { fputs(\"load_backend: x\\nversion: 10167 (ee3d1b54c)\\n\", stderr); }\n";
    std::fs::write(&source, code).expect("written");
    assert!(Command::new("gcc-12").args(["-o", &path, &source]).status().expect("gcc-12").success());
    let named = ["run", "--profile", "llama-cpp-m1-ultra", "--", &path];
    let refused = go(&mut ferry(&[&named[..3], &HOST[..], &named[3..]].concat()));
    // The build fits; this machine's own build is what does not.
    assert!(refused.stderr.contains("(guest build "), "{}", refused.stderr);
}

#[test]
fn profiles_are_listed_shown_matched_and_checked() {
    let list = go(&mut ferry(&["profile", "list"]));
    assert!(list.stdout.contains("llama-cpp-default\tllama.cpp b10605\tderived"), "{}", list.stdout);
    let shown = go(&mut ferry(&["profile", "show", "llama-cpp-default"]));
    assert!(
        shown.stdout.contains("sha256 d5141f29") && shown.stdout.contains("1009, 64 KiB, host preference on")
    );
    assert_eq!(go(&mut ferry(&["profile", "show", "nothing"])).code, Some(1));
    let matched =
        go(&mut ferry(&[&["profile", "match", "--app", "llama.cpp", "--experimental"], &HOST[..]].concat()));
    assert!(
        matched.stdout.contains("apple_family_max=1007\nthreadgroup_memory=32768\n"),
        "{}",
        matched.stdout
    );
    let mlx =
        go(&mut ferry(&[&["profile", "match", "--app", "mlx@0.32.0", "--experimental"], &HOST[..]].concat()));
    assert_eq!(mlx.code, Some(78));
    assert!(mlx.stderr.contains("gained nothing"), "{}", mlx.stderr);
    let path = Fixture::get().path("bad.toml");
    std::fs::write(&path, "[[profile]]\nid = 1\n").expect("written");
    let bad = go(&mut ferry(&["profile", "check", &path]));
    assert_eq!(bad.code, Some(1));
    assert!(bad.stderr.contains("bad.toml"), "{}", bad.stderr);
}

/// Everything about every built-in profile, its key included: a change shows here, and makes old tokens void.
#[test]
fn built_in_profiles_are_golden() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let compare = |name: &str, arguments: &[&str]| {
        let path = golden.join(name);
        let outcome = go(&mut ferry(arguments));
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(outcome.stdout, expected, "{}", path.display());
    };
    compare("profiles.txt", &["profile", "list"]);
    for id in ["llama-cpp-m1-ultra", "llama-cpp-default", "mlx-m1-ultra"] {
        compare(&format!("profile-{id}.txt"), &["profile", "show", id]);
    }
}
