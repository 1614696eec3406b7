//! The shim against a real Objective-C runtime: GCC's, with a model of Metal's class hierarchy.
#![cfg(target_os = "linux")]

use ferry_shim_contract::status::State;
use ferry_shim_contract::token::Token;
use ferry_shim_contract::{BUILD_LENGTH_MAX, DEVICE_CLASS, DEVICE_NAME, EXIT_NOT_INSTALLED, guest_build};
use ferry_shim_fixture::{Fixture, Outcome, Run, shim};

const STOCK: &str = "families 1001 1005 2001 3001 3003";
const RAISED: &str = "families 1001 1005 1006 1007 2001 3001 3003";

/// Asserts that a run gave exactly the answers of a run without the shim.
#[track_caller]
fn assert_stock(outcome: &Outcome, driver: &str) {
    let stock = Run::stock(&["print"]).driver(driver).go();
    assert!(stock.stdout.contains("default families"), "{}", stock.stdout);
    assert_eq!(outcome.stdout, stock.stdout);
}

#[test]
fn only_the_wanted_answers_change() {
    for driver in ["inherits.bundle", "owns.bundle"] {
        let stock = Run::stock(&["print"]).driver(driver).go();
        let with = Run::new(&["print"]).driver(driver).family("1007").memory("65536").go();
        assert_eq!(with.states(), [State::Armed, State::Installed], "{:?}", with.status);
        let changed: Vec<(&str, &str)> =
            stock.stdout.lines().zip(with.stdout.lines()).filter(|(a, b)| a != b).collect();
        let memory = if driver == "owns.bundle" { "memory 16384" } else { "memory 32768" };
        let code = if driver == "owns.bundle" { "owns.bundle" } else { "libMetal.so" };
        let expected = [
            (format!("default {STOCK}"), format!("default {RAISED}")),
            (format!("default {memory}"), "default memory 65536".to_owned()),
            (format!("again {STOCK}"), format!("again {RAISED}")),
            (format!("again {memory}"), "again memory 65536".to_owned()),
            // Taken off the base class again, but GCC's runtime keeps the code that a subclass has already looked up.
            code_line("initGPUFamilySupport", "libMetal.so"),
            code_line("supportsFamily:", code),
            code_line("maxThreadgroupMemoryLength", code),
        ];
        let changed: Vec<(String, String)> =
            changed.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        assert_eq!(changed, expected, "{driver}");
        assert_eq!((with.code, with.stderr.as_str()), (Some(0), ""));
    }
}

fn code_line(selector: &str, before: &str) -> (String, String) {
    let line = |file: &str| format!("code AppleParavirtDevice {selector} {file}");
    (line(before), line("libferry_metal_shim.so"))
}

#[test]
fn without_a_size_memory_stays_as_it_is() {
    let with = Run::new(&["print"]).family("1007").go();
    assert_eq!(with.lines("default"), [&format!("default {RAISED}"), "default memory 32768"]);
    assert_eq!(
        with.lines("code AppleParavirtDevice max"),
        ["code AppleParavirtDevice maxThreadgroupMemoryLength libMetal.so"]
    );
}

#[test]
fn answers_are_never_lowered() {
    let with = Run::new(&["print"]).family("1003").memory("16384").go();
    assert_eq!(with.lines("default"), [&format!("default {STOCK}"), "default memory 32768"]);
    assert!(with.states().contains(&State::Installed));
}

/// MLX asks for residency sets where Metal3 is claimed, and the paravirtual device has none.
#[test]
fn metal3_stays_false_up_to_the_highest_ceiling() {
    let with = Run::new(&["print"]).family("1999").go();
    assert_eq!(
        with.lines("default families"),
        ["default families 1001 1005 1006 1007 1008 1009 1010 1999 2001 3001 3003"]
    );
}

#[test]
fn the_references_variables_work() {
    let with = Run::new(&["print"])
        .env("LUME_METAL_APPLE_FAMILY_MAX", "1007")
        .env("LUME_METAL_RECOMMENDED_WORKING_SET_SIZE", "1")
        .go();
    assert_eq!(with.lines("default families"), [format!("default {RAISED}")]);
    assert!(
        with.status[0].1.contains("ignored=LUME_METAL_RECOMMENDED_WORKING_SET_SIZE"),
        "{:?}",
        with.status
    );
}

#[test]
fn every_malformed_variable_leaves_everything_stock_and_says_so() {
    let fixture = Fixture::get();
    let damaged = fixture.path("damaged-token");
    std::fs::write(&damaged, "ferry-metal-token 1\nguest_build=").expect("written");
    let cases: [(&str, &str, &str); 12] = [
        ("FERRY_METAL_APPLE_FAMILY_MAX", "", "decimal"),
        ("FERRY_METAL_APPLE_FAMILY_MAX", "5001", "from 1001 to 1999"),
        ("FERRY_METAL_APPLE_FAMILY_MAX", "1007x", "decimal"),
        ("FERRY_METAL_APPLE_FAMILY_MAX", " 1007", "decimal"),
        ("LUME_METAL_APPLE_FAMILY_MAX", "1009", "only one of the two"),
        ("FERRY_METAL_MAX_THREADGROUP_MEMORY", "-1", "from 16384 to 65536"),
        ("LUME_METAL_MAX_THREADGROUP_MEMORY", "18446744073709551615", "from 16384 to 65536"),
        ("FERRY_METAL_MAX_THREADGROUP_MEMORY", "40001", "multiple of 16"),
        ("FERRY_METAL_TOKEN", "token", "absolute path"),
        ("FERRY_METAL_TOKEN", "/nonexistent/token", "cannot be read"),
        ("FERRY_METAL_TOKEN", &damaged, "lacks guest_build"),
        ("FERRY_METAL_PROFILE", "two words", "without spaces"),
    ];
    for (name, value, says) in cases {
        let with = Run::new(&["print"]).family("1007").env(name, value).go();
        assert_eq!(with.states(), [State::Refused], "{name}={value}: {:?}", with.status);
        assert!(with.detail().contains(says), "{name}={value}: {:?}", with.status);
        assert_eq!((with.code, with.stderr.as_str()), (Some(0), ""));
        assert_stock(&with, "inherits.bundle");
    }
    let without = Run::new(&["print"]).go();
    assert!(without.detail().contains("FERRY_METAL_APPLE_FAMILY_MAX is not set"));
    assert_stock(&without, "inherits.bundle");
}

#[test]
fn a_method_of_another_shape_fails_the_whole_install() {
    for (driver, method) in
        [("int_family.bundle", "supportsFamily:"), ("float_memory.bundle", "maxThreadgroupMemoryLength")]
    {
        let with = Run::new(&["print"]).driver(driver).family("1007").memory("65536").go();
        assert_eq!(with.states(), [State::Armed, State::Failed], "{:?}", with.status);
        assert!(with.status[1].1.contains(method), "{:?}", with.status);
        assert_answers_stock(&with, driver);
    }
}

/// A macOS that the shim does not know: everything stays stock, and it says so.
#[test]
fn a_process_without_metal_or_with_another_one_is_refused() {
    let bare = Run::of("bare", &[]).family("1007").go();
    assert_eq!((bare.code, bare.states()), (Some(0), vec![State::Refused]));
    assert!(bare.detail().contains("no class _MTLDevice"), "{:?}", bare.status);
    let moved = |run: Run| run.env("LD_LIBRARY_PATH", Fixture::get().path("moved"));
    let with = moved(Run::new(&["print"]).family("1007")).go();
    assert_eq!(with.states(), [State::Refused]);
    assert!(with.detail().contains("no method initGPUFamilySupport"), "{:?}", with.status);
    assert_eq!(with.lines("default families"), [format!("default {STOCK}")]);
    assert_eq!(with.stdout, moved(Run::stock(&["print"])).go().stdout);
}

/// The runtime takes the first override and refuses the second: the first is put back.
#[test]
fn a_partial_install_is_rolled_back() {
    let preload = format!("{} {}", shim().display(), Fixture::get().path("add_method.so"));
    let run = || Run::new(&["print"]).family("1007").memory("65536").env("LD_PRELOAD", &preload);
    let with = run().env("DENY_ADD", "maxThreadgroupMemoryLength").go();
    assert_eq!(with.states(), [State::Armed, State::Failed], "{:?}", with.status);
    assert!(with.status[1].1.contains("would not add maxThreadgroupMemoryLength"), "{:?}", with.status);
    assert_answers_stock(&with, "inherits.bundle");
    // The same with nothing denied installs: it was the denial that failed it.
    assert!(run().go().states().contains(&State::Installed));
}

/// Stock answers, and stock code behind them, for every class. GCC's runtime keeps the initialiser that the driver's class
/// has already looked up.
#[track_caller]
fn assert_answers_stock(outcome: &Outcome, driver: &str) {
    const KEPT: &str = "code AppleParavirtDevice initGPUFamilySupport";
    let stock = Run::stock(&["print"]).driver(driver).go();
    let answers = |outcome: &Outcome| -> Vec<String> {
        outcome.stdout.lines().filter(|line| !line.starts_with(KEPT)).map(str::to_owned).collect()
    };
    assert_eq!(answers(outcome), answers(&stock));
}

#[test]
fn a_real_gpu_is_left_alone() {
    let with = Run::new(&["print"]).family("1009").env("FIXTURE_CLASS", "AGXG13Device").go();
    assert_eq!(with.states(), [State::Armed, State::Skipped]);
    assert!(with.detail().contains("AGXG13Device"));
    let stock = Run::stock(&["print"]).env("FIXTURE_CLASS", "AGXG13Device").go();
    assert_eq!(with.lines("default"), stock.lines("default"));
    assert_eq!(with.lines("real"), stock.lines("real"));
}

#[test]
fn a_device_of_another_name_withdraws_the_shim() {
    let with = Run::new(&["print"]).driver("misnamed.bundle").family("1009").memory("65536").go();
    assert_eq!(with.states()[..3], [State::Armed, State::Installed, State::Withdrawn], "{:?}", with.status);
    assert_eq!(with.lines("default"), [&format!("default {STOCK}"), "default memory 32768"]);
}

/// Even where installing takes so long that every thread arrives in the middle of it.
#[test]
fn concurrent_first_use_sees_raised_answers_only() {
    let preload = format!("{} {}", shim().display(), Fixture::get().path("add_method.so"));
    for delay_ms in ["0", "0", "0", "1", "20", "100"] {
        let run = Run::new(&["threads"]).family("1007").memory("65536").env("LD_PRELOAD", &preload);
        let with = run.env("DELAY_ADD_MS", delay_ms).go();
        assert_eq!(with.stdout, "raised 16 of 16\n", "{delay_ms} ms");
        assert_eq!(with.states(), [State::Armed, State::Installed]);
    }
}

#[test]
fn loading_it_again_changes_nothing_and_a_second_copy_refuses() {
    let own = shim().to_str().expect("UTF-8").to_owned();
    let again = Run::new(&["load", &own, &own]).family("1007").go();
    assert_eq!(again.states(), [State::Armed, State::Installed]);
    let copy = Fixture::get().path("second_copy.so");
    std::fs::copy(&own, &copy).expect("copied");
    let second = Run::new(&["load", &copy]).family("1007").go();
    assert_eq!(second.states(), [State::Armed, State::Refused, State::Installed], "{:?}", second.status);
    assert!(second.status[1].1.contains("another copy"));
    assert_eq!(again.stdout, second.stdout);
    assert_eq!(again.lines("default families"), [format!("default {RAISED}")]);
}

#[test]
fn loaded_after_the_first_device_it_installs_at_once() {
    let own = shim().to_str().expect("UTF-8").to_owned();
    let with = Run::stock(&["load", &own]).env("DEVICE_FIRST", "1").family("1007").go();
    assert_eq!(with.states(), [State::Installed], "{:?}", with.status);
    assert_eq!(with.lines("default families"), [format!("default {RAISED}")]);
}

#[test]
fn a_fork_keeps_the_answers_and_an_executed_child_is_stock() {
    for arguments in [&["fork", "device"][..], &["fork"]] {
        let forked = Run::new(arguments).family("1007").go();
        assert_eq!(forked.lines("child families"), [format!("child {RAISED}")]);
    }
    let executed = Run::new(&["exec"]).family("1007").go();
    assert_eq!(executed.lines("parent families"), [format!("parent {RAISED}")]);
    assert_eq!(executed.lines("preload"), ["preload unset"]);
    assert_eq!(executed.lines("default families"), [format!("default {STOCK}")]);
    assert_eq!(executed.states(), [State::Armed, State::Installed]);
}

#[test]
fn other_peoples_insertions_stay() {
    let other = Fixture::get().path("add_method.so");
    let linked = Fixture::get().path("linked_shim.so");
    _ = std::os::unix::fs::symlink(shim(), &linked);
    for preload in [format!("{}:{other}", shim().display()), format!("{other} {linked}")] {
        let executed = Run::new(&["exec"]).family("1007").env("LD_PRELOAD", preload).go();
        assert_eq!(executed.lines("preload"), [format!("preload {other}")]);
        assert_eq!(executed.lines("default families"), [format!("default {STOCK}")]);
    }
}

#[test]
fn required_without_an_install_ends_the_process() {
    let exits = |run: Run| run.env("FERRY_METAL_REQUIRED", "1").go().code;
    let not_installed = Some(EXIT_NOT_INSTALLED);
    assert_eq!(exits(Run::new(&["idle"])), not_installed, "no ceiling");
    assert_eq!(exits(Run::new(&["idle"]).family("1007")), not_installed, "no token");
    assert_eq!(exits(with_token(Run::new(&["idle"]).family("9"))), not_installed, "bad ceiling");
    assert_eq!(exits(with_token(Run::new(&["idle"]).family("1008"))), not_installed, "beyond the token");
    assert_eq!(
        exits(with_token(Run::new(&["print"]).family("1007").driver("int_family.bundle"))),
        not_installed
    );
    assert_eq!(
        exits(with_token(Run::new(&["print"]).family("1007").driver("misnamed.bundle"))),
        not_installed
    );
    let real = with_token(Run::new(&["print"]).family("1007").env("FIXTURE_CLASS", "AGXG13Device"));
    assert_eq!(exits(real), not_installed, "a real GPU");
    let vague = Run::new(&["idle"]).family("1007").env("FERRY_METAL_REQUIRED", "yes").go();
    assert_eq!((vague.code, vague.stdout.as_str()), (not_installed, ""));
    let threads = with_token(Run::new(&["threads"]).family("1007").memory("32768"));
    assert_eq!(exits(threads), Some(0), "installed");
}

/// A token for this machine, profile `test@1`, family 1007, 32 KiB.
fn with_token(run: Run) -> Run {
    let path = Fixture::get().path("token");
    let mut build = [0; BUILD_LENGTH_MAX];
    let build = guest_build(&mut build).expect("uname works");
    let token = Token {
        guest_build: std::str::from_utf8(build).expect("UTF-8"),
        device_name: DEVICE_NAME,
        device_class: DEVICE_CLASS,
        profile: "test@1",
        family_max: 1007,
        threadgroup_memory: 32768,
        checks: "simdgroup_sum",
    };
    // Tests run in parallel: the file must never be seen half written.
    let unfinished = format!("{path}-{:?}", std::thread::current().id());
    std::fs::write(&unfinished, token.to_string())
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .expect("written");
    run.env("FERRY_METAL_TOKEN", path).env("FERRY_METAL_PROFILE", "test@1")
}

#[test]
fn a_token_for_something_else_is_refused() {
    let stale = with_token(Run::new(&["print"]).family("1007")).env("FERRY_METAL_PROFILE", "test@2").go();
    assert_eq!(stale.states(), [State::Refused]);
    assert!(stale.detail().contains("another profile"));
    let good = with_token(Run::new(&["print"]).family("1007")).env("FERRY_METAL_REQUIRED", "1").go();
    assert!(good.states().contains(&State::Installed), "{:?}", good.status);
}

#[test]
fn standard_error_is_silent_unless_asked_for() {
    let silent = Run::new(&["print"]).family("x").unset("FERRY_METAL_STATUS").go();
    assert_eq!(silent.stderr, "");
    let asked = Run::new(&["print"]).family("x").env("FERRY_METAL_STATUS", "stderr").go();
    assert!(
        asked.stderr.starts_with("ferry-metal-shim[") && asked.stderr.contains("decimal"),
        "{}",
        asked.stderr
    );
}

#[test]
fn a_status_descriptor_that_became_another_file_is_not_written_to() {
    let (own, given) = (Fixture::get().path("programs_own_file"), Fixture::get().path("given_status"));
    // The shell opens descriptor 9 for the shim; the program closes it and reuses the number.
    let script = format!(
        "exec 9>'{given}'; LD_PRELOAD='{}' FERRY_METAL_STATUS=fd:9 FERRY_METAL_APPLE_FAMILY_MAX=1007 \
         FIXTURE_BUNDLE='{}' '{}' reuse 9 '{own}'",
        shim().display(),
        Fixture::get().path("inherits.bundle"),
        Fixture::get().path("program"),
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert!(String::from_utf8_lossy(&output.stdout).contains(RAISED));
    let given = std::fs::read_to_string(&given).expect("the status file");
    assert!(given.contains(": armed: ") && given.lines().count() == 1, "{given}");
    assert_eq!(std::fs::read_to_string(&own).expect("the program's file"), "");
}
