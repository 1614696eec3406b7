//! The probe against the model of Metal on GCC's Objective-C runtime.
#![cfg(target_os = "linux")]

use ferry_shim_contract::token::Token;
use ferry_shim_fixture::{Fixture, Run, shim};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const CHECKS: [&str; 5] =
    ["simdgroup_sum", "simdgroup_matrix", "bfloat", "threadgroup_memory", "no_copy_buffer"];

/// The probe with the model of Metal in its process.
fn probe(arguments: &[&str]) -> Command {
    let fixture = Fixture::get();
    let mut command = Command::new(env!("CARGO_BIN_EXE_metal-capabilities"));
    command
        .args(arguments)
        .env_clear()
        .env("LD_PRELOAD", fixture.path("libMetal.so"))
        .env("FIXTURE_BUNDLE", fixture.path("inherits.bundle"));
    command
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the probe starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

fn json(command: &mut Command) -> (Option<i32>, Value) {
    let (code, stdout, stderr) = run(command);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout} {stderr}")))
}

#[test]
fn it_prints_the_references_fields_and_its_status_is_the_answer() {
    let (code, stdout, _) = run(&mut probe(&["1009"]));
    let reference =
        "device=Apple Paravirtual device\nfamily=1009\nsupports_family=false\nmax_threadgroup_memory=32768\n";
    assert!(stdout.starts_with(reference), "{stdout}");
    assert_eq!(code, Some(1), "a false answer is not a success");
    let (code, stdout, _) = run(&mut probe(&["1005"]));
    assert!(stdout.contains("supports_family=true\n"));
    assert_eq!(code, Some(0));
}

#[test]
fn with_the_shim_it_sees_raised_answers() {
    let preload = format!("{} {}", shim().display(), Fixture::get().path("libMetal.so"));
    let mut shimmed = probe(&["1007", "--json"]);
    shimmed.env("LD_PRELOAD", preload).env("FERRY_METAL_APPLE_FAMILY_MAX", "1007");
    let (code, said) = json(&mut shimmed);
    assert_eq!(code, Some(0));
    assert_eq!(said["apple_family_max"], 1007);
    assert_eq!(said["supports_metal3"], false);
    assert_eq!(said["shim"], 1);
    let (_, stock) = json(&mut probe(&["1007", "--json"]));
    assert_eq!((&stock["apple_family_max"], &stock["shim"]), (&Value::from(1005), &Value::Null));
}

#[test]
fn without_metal_it_could_not_be_asked() {
    let (code, stdout, stderr) = run(probe(&[]).env_remove("LD_PRELOAD"));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("this needs macOS with Metal"), "{stderr}");
    let (code, _, stderr) = run(probe(&[]).env("FIXTURE_CLASS", "NoSuchDevice"));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("returned nil"), "{stderr}");
}

#[test]
fn an_honest_device_honours_everything() {
    let (code, said) = json(&mut probe(&["--honour", "--json"]));
    assert_eq!(code, Some(0), "{said}");
    let checks: Vec<&str> =
        said["checks"].as_array().expect("a list").iter().filter_map(|c| c["check"].as_str()).collect();
    assert_eq!(checks, CHECKS);
    assert!(said["checks"].as_array().expect("a list").iter().all(|check| check["result"] == "honoured"));
}

/// Each check must notice each fault: a check that cannot fail would vouch for nothing.
#[test]
fn every_check_notices_every_fault() {
    for check in CHECKS {
        for (fault, result, detail) in [
            ("wrong", "not_honoured", "the CPU says"),
            ("refuse", "not_honoured", "does not compile: program_source:3"),
            ("fail", "not_honoured", "status 5: the GPU was reset"),
            ("crash", "crashed", "signal: 6"),
        ] {
            let mut faulty = probe(&["--honour", "--json"]);
            let (code, said) = json(faulty.env("FIXTURE_FAULT", format!("{fault}:check_{check}")));
            assert_eq!(code, Some(1), "{fault} {check}");
            for found in said["checks"].as_array().expect("a list") {
                let expected = if found["check"] == check { result } else { "honoured" };
                assert_eq!(found["result"], expected, "{fault} {check}: {found}");
                if found["check"] == check {
                    assert!(found["detail"].as_str().is_some_and(|text| text.contains(detail)), "{found}");
                }
            }
        }
    }
}

#[test]
fn a_hang_ends_at_the_deadline() {
    let start = std::time::Instant::now();
    let mut hanging = probe(&["--honour", "--timeout-s", "1"]);
    let (code, stdout, _) = run(hanging.env("FIXTURE_FAULT", "hang:check_bfloat"));
    assert_eq!(code, Some(1));
    assert!(stdout.contains("check.bfloat=timed out: no answer after 1 s\n"), "{stdout}");
    assert!(stdout.contains("check.no_copy_buffer=honoured\n"), "{stdout}");
    assert!(start.elapsed().as_secs() < 30);
}

#[test]
fn the_shim_is_at_work_in_the_checks_or_they_count_for_nothing() {
    let library = shim();
    let library = library.to_str().expect("UTF-8");
    let (code, said) = json(&mut probe(&["--honour", "--json", "--shim", library]));
    assert_eq!(code, Some(0), "{said}");
    // A library that is no shim.
    let other = Fixture::get().path("add_method.so");
    let (code, stdout, stderr) = run(&mut probe(&["--honour", "--shim", &other]));
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stderr.contains("the shim was not inserted"), "{stderr}");
    // A shim that refuses its configuration: the device is then stock.
    let mut other_driver = probe(&["--honour", "--shim", library]);
    other_driver.env("FIXTURE_BUNDLE", Fixture::get().path("int_family.bundle"));
    let (code, _, stderr) = run(&mut other_driver);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("is not claimed"), "{stderr}");
    let (code, _, stderr) = run(&mut probe(&["--honour", "--shim", "/nonexistent"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("no such shim"), "{stderr}");
}

/// A probe that is to write a token.
fn with_token(path: &str) -> Command {
    let library = shim();
    probe(&[
        "1009",
        "--honour",
        "--shim",
        library.to_str().expect("UTF-8"),
        "--profile",
        "test@1",
        "--token",
        path,
    ])
}

#[test]
fn a_token_vouches_for_what_was_tried_and_no_more() {
    let path = Fixture::get().path("tokens/good");
    let (code, stdout, stderr) = run(&mut with_token(&path));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let bytes = std::fs::read(&path).expect("a token");
    let token = Token::parse(&bytes).expect("well-formed");
    assert_eq!((token.profile, token.family_max, token.threadgroup_memory), ("test@1", 1007, 32768));
    assert_eq!(token.checks, CHECKS.join(","));
}

/// What the probe writes is what the shim's required mode takes.
#[test]
fn the_shim_takes_the_token() {
    let path = Fixture::get().path("tokens/for_the_shim");
    assert_eq!(run(&mut with_token(&path)).0, Some(0));
    let required = |family: &str| {
        let run = Run::new(&["print"]).family(family).env("FERRY_METAL_REQUIRED", "1");
        run.env("FERRY_METAL_TOKEN", &path).env("FERRY_METAL_PROFILE", "test@1").go().code
    };
    assert_eq!(required("1007"), Some(0));
    assert_eq!(required("1009"), Some(78));
}

#[test]
fn a_stale_token_does_not_outlive_a_failed_probe() {
    let path = Fixture::get().path("tokens/stale");
    assert_eq!(run(&mut with_token(&path)).0, Some(0));
    let (code, stdout, _) = run(with_token(&path).env("FIXTURE_FAULT", "wrong:check_bfloat"));
    assert_eq!(code, Some(1));
    assert!(stdout.contains("token=none: not everything was honoured"), "{stdout}");
    assert!(!Path::new(&path).exists());
}

#[test]
fn a_real_gpu_gets_no_token() {
    let path = Fixture::get().path("tokens/real");
    let preload = format!("{0}/libOthers.so {0}/libMetal.so", Fixture::get().path(""));
    let mut real = probe(&["1007", "--honour", "--profile", "test@1", "--token", &path]);
    real.env("LD_PRELOAD", preload).env("FIXTURE_CLASS", "AGXG13Device");
    let (code, stdout, stderr) = run(&mut real);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("token=none: this is Apple M1"), "{stdout}");
    assert!(!Path::new(&path).exists());
}

#[test]
fn malformed_arguments_are_refused() {
    for arguments in [
        &["x"][..],
        &["--honour", "5001"],
        &["--honour", "--threadgroup-memory", "100"],
        &["--honour", "--threadgroup-memory", "32770"],
        &["--honour", "--timeout-s", "0"],
        &["--token", "/t"],
        &["--honour", "--token", "/t"],
        &["--shim", "/s"],
    ] {
        let (code, stdout, stderr) = run(&mut probe(arguments));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!stderr.is_empty());
    }
    let mut two_words = with_token("/nonexistent-folder/token");
    let (code, _, stderr) = run(two_words.arg("--profile=two\nlines"));
    assert_eq!(code, Some(2), "{stderr}");
}
