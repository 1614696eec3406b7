//! The built-in profiles, what is made of them, and malformed files.

use ferry_shim_profiles::{Catalogue, Claim, Combination, Overrides, ProfileError, RefusedClaim, Standing};
use std::path::Path;

fn catalogue() -> Catalogue {
    Catalogue::built_in().expect("the built-in profiles are well-formed")
}

/// The combination of the published measurements.
fn published() -> Combination {
    Combination {
        app: "llama.cpp".into(),
        build: Some("b10167".parse().expect("a build")),
        api: "metal".into(),
        host_chip: "Apple M1 Ultra".into(),
        host_os: Some("26.6.1".into()),
        guest_build: "25F84".into(),
    }
}

fn claim(combination: &Combination, experimental: bool) -> Result<Claim, RefusedClaim> {
    catalogue().claim(combination, None, Overrides::default(), experimental)
}

#[test]
fn every_file_of_the_folder_is_built_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = catalogue();
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        if !name.ends_with(".toml") || ["Cargo.toml", "chips.toml"].contains(&name) {
            continue;
        }
        assert!(
            matches!(known.add_file(&path), Err(ProfileError::RepeatedId { .. })),
            "{name} is not built in"
        );
    }
}

#[test]
fn the_published_combination_is_claimed_up_to_what_the_chip_is() {
    let claim = claim(&published(), false).expect("measured");
    assert_eq!((claim.family_max, claim.threadgroup_memory), (1007, Some(32768)));
    assert!(claim.key.starts_with("llama-cpp-m1-ultra@"), "{}", claim.key);
    assert!(claim.remarks[0].contains("Apple M1 is family 1007"), "{:?}", claim.remarks);
}

#[test]
fn the_default_for_llama_cpp_is_derived_and_names_its_arms() {
    let catalogue = catalogue();
    let default = catalogue.find("llama-cpp-default").expect("built in");
    assert_eq!(default.standing, Standing::Derived);
    assert_eq!((default.apple_family_max, default.threadgroup_memory), (Some(1007), Some(32768)));
    let with = |family, memory, preference| {
        default.arms.iter().any(|arm| {
            arm.apple_family_max == family
                && arm.threadgroup_memory == memory
                && arm.host_preference == preference
        })
    };
    for preference in [false, true] {
        assert!(with(None, None, preference));
        for (family, memory) in [(1007, 32768), (1007, 65536), (1009, 32768), (1009, 65536)] {
            assert!(with(Some(family), Some(memory), preference), "{family} {memory} {preference}");
        }
    }
}

#[test]
fn whatever_was_not_measured_is_refused_and_says_why() {
    let other = |change: &dyn Fn(&mut Combination), says: &str| {
        let mut combination = published();
        change(&mut combination);
        let refused = claim(&combination, false).expect_err(says);
        assert!(
            matches!(refused, RefusedClaim::Untested { .. })
                && refused.to_string().contains("--experimental"),
            "{refused}"
        );
        let tried = claim(&combination, true).expect("an experiment");
        assert!(tried.remarks[0].contains(says), "{says}: {:?}", tried.remarks);
        assert!(tried.key.starts_with("llama-cpp-default@"));
        assert_eq!((tried.family_max, tried.threadgroup_memory), (1007, Some(32768)));
    };
    for change in [
        (&|c: &mut Combination| c.build = "b10168".parse().ok()) as &dyn Fn(&mut Combination),
        &|c| c.build = None,
        &|c| c.host_chip = "Apple M4 Max".into(),
        &|c| c.host_os = Some("26.6.2".into()),
        &|c| c.host_os = None,
        &|c| c.guest_build = "25F85".into(),
    ] {
        other(change, "derived");
    }
}

#[test]
fn a_named_profile_says_what_does_not_fit() {
    let refusal = |change: &dyn Fn(&mut Combination)| {
        let mut combination = published();
        change(&mut combination);
        let claim = catalogue().claim(&combination, Some("llama-cpp-m1-ultra"), Overrides::default(), false);
        claim.expect_err("untested").to_string()
    };
    assert!(refusal(&|c| c.build = "b10168".parse().ok()).contains("build b10168, measured was b10167"));
    assert!(refusal(&|c| c.build = None).contains("--app NAME@BUILD"));
    assert!(refusal(&|c| c.host_chip = "Apple M4 Max".into()).contains("host chip Apple M4 Max"));
    assert!(refusal(&|c| c.host_os = Some("15.0".into())).contains("host system 15.0"));
    assert!(refusal(&|c| c.host_os = None).contains("--host-os"));
    assert!(refusal(&|c| c.guest_build = "25F85".into()).contains("guest build 25F85"));
    let none = catalogue().claim(&published(), Some("nothing"), Overrides::default(), true);
    assert!(matches!(none, Err(RefusedClaim::UnknownProfile { .. })));
}

#[test]
fn an_unknown_chip_is_refused_even_as_an_experiment() {
    let unknown = Combination { host_chip: "Apple M9".into(), ..published() };
    assert!(matches!(claim(&unknown, true), Err(RefusedClaim::UnknownChip { .. })));
    let unknown = Combination { app: "blender".into(), ..published() };
    assert!(matches!(claim(&unknown, true), Err(RefusedClaim::UnknownApp { .. })));
}

#[test]
fn mlx_gains_nothing() {
    let mlx = Combination { app: "mlx".into(), build: "0.32.0".parse().ok(), ..published() };
    let refused = claim(&mlx, false).expect_err("no gain");
    assert!(refused.to_string().contains("gained nothing"), "{refused}");
}

#[test]
fn overrides_are_experiments_with_a_key_of_their_own() {
    let with = |family_max, threadgroup_memory, experimental| {
        let overrides = Overrides { family_max, threadgroup_memory };
        catalogue().claim(&published(), None, overrides, experimental)
    };
    assert_eq!(with(Some(1009), None, false), Err(RefusedClaim::OverrideWithoutExperiment));
    let arm = with(Some(1009), Some(65536), true).expect("an arm");
    assert_eq!((arm.family_max, arm.threadgroup_memory), (1009, Some(65536)));
    assert!(arm.key.starts_with("custom@"));
    assert_ne!(with(Some(1007), Some(65536), true).expect("an arm").key, arm.key);
    for (family, memory) in [(Some(5001), None), (Some(1000), None), (None, Some(65537)), (None, Some(100))] {
        assert!(
            matches!(with(family, memory, true), Err(RefusedClaim::BadOverride(_))),
            "{family:?} {memory:?}"
        );
    }
}

const GOOD: &str = r#"
[[profile]]
id = "mine"
app = "llama.cpp"
api = "metal"
builds = "b10200..b10300"
host_chips = ["Apple M2"]
host_os = ["26.6.1"]
guest_builds = ["25F84"]
standing = "measured"
apple_family_max = 1008
note = "mine"
[[profile.evidence]]
kind = "measurement"
what = "a run"
date = "2026-11-29"
sha256 = "515b9d84ab67e86d959282e95c194a5ad8a947261514b947d6f7483c57797b31"
"#;

fn add(text: &str) -> Result<usize, ProfileError> {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("profile-{count}.toml"));
    std::fs::write(&path, text).expect("written");
    catalogue().add_file(&path)
}

#[test]
fn every_malformed_profile_is_refused() {
    assert_eq!(add(GOOD).expect("well-formed"), 1);
    for (from, to) in [
        ("1008", "5001"),
        ("1008", "-1"),
        ("1008", "\"1008\""),
        ("apple_family_max = 1008", ""),
        ("apple_family_max = 1008", "apple_family_max = 1008\nthreadgroup_memory = 70000"),
        ("apple_family_max = 1008", "apple_family_max = 1008\nceiling = 1009"),
        ("\"measured\"", "\"certain\""),
        ("\"measured\"", "\"derived\""),
        ("\"measured\"", "\"no-gain\""),
        ("\"measurement\"", "\"source\""),
        ("[\"Apple M2\"]", "[]"),
        ("[\"Apple M2\"]", "[\"any\"]"),
        ("[\"Apple M2\"]", "[\"any\", \"Apple M2\"]"),
        ("\"metal\"", "\"vulkan\""),
        ("\"mine\"", "\"Mine!\""),
        ("\"mine\"", "\"mlx-m1-ultra\""),
        ("b10200..b10300", "b10300..b10200"),
        ("2026-11-29", "29.11.2026"),
        ("515b", "515B"),
        ("515b", ""),
        ("a run", "  "),
        ("[[profile]]", "[profile]"),
        ("[[profile.evidence]]", "[[profile.proof]]"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        assert!(add(&text).is_err(), "{from} -> {to}");
    }
    for text in ["", "profile = 1", "\u{0}", &"#".repeat(300 * 1024)] {
        assert!(add(text).is_err(), "{:.20}", text);
    }
    assert!(catalogue().add_file(Path::new("/nonexistent.toml")).is_err());
}

/// A token for an earlier text of a profile is no good for a later one.
#[test]
fn a_key_changes_with_the_text() {
    let key = |text: &str| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("key.toml");
        std::fs::write(&path, text).expect("written");
        let mut catalogue = catalogue();
        catalogue.add_file(&path).expect("well-formed");
        catalogue.find("mine").expect("added").key()
    };
    assert_eq!(key(GOOD), key(&format!("# a comment\n{GOOD}")));
    assert_ne!(key(GOOD), key(&GOOD.replace("1008", "1007")));
    assert!(key(GOOD).len() <= 128);
}
