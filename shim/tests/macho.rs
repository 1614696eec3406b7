//! The shim and the probe as Mach-O files: what they load, export, import and say, and their signatures. They are built
//! by `shim/macos/cross.sh`, twice.
//!
//! `cargo test -p ferry-shim --features macho --test macho`
#![cfg(target_os = "linux")]

use object::macho::{self, MachHeader64};
use object::read::macho::{LoadCommandVariant, MachHeader};
use object::{Endianness, File, Object, ObjectSection, ObjectSymbol};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const LIBRARY: &str = "libferry_metal_shim.dylib";
const PROBE: &str = "metal-capabilities";
const SYSTEM: &str = "/usr/lib/libSystem.B.dylib";
const OBJC: &str = "/usr/lib/libobjc.A.dylib";
const METAL: &str = "/System/Library/Frameworks/Metal.framework/Versions/A/Metal";
/// The shim goes into other people's programs.
const LIBRARY_LENGTH_MAX: usize = 128 * 1024;
/// Everything that the shim may ask of macOS.
const IMPORTS: [&str; 39] = [
    "_MTLCreateSystemDefaultDevice",
    "___error",
    "__exit",
    "_abort",
    "_bzero",
    "_calloc",
    "_class_addMethod",
    "_class_copyMethodList",
    "_class_getInstanceMethod",
    "_class_getMethodImplementation",
    "_class_getName",
    "_close",
    "_dladdr",
    "_fcntl",
    "_free",
    "_fstat",
    "_getenv",
    "_getpid",
    "_memcmp",
    "_memcpy",
    "_method_getImplementation",
    "_method_getName",
    "_method_getTypeEncoding",
    "_method_setImplementation",
    "_objc_getClass",
    "_object_getClass",
    "_open",
    "_read",
    "_sched_yield",
    "_sel_isEqual",
    "_sel_registerName",
    "_setenv",
    "_stat",
    "_strlen",
    "_sysctlbyname",
    "_syslog$DARWIN_EXTSN",
    "_unsetenv",
    "_write",
    "dyld_stub_binder",
];

/// The folders of two builds.
fn builds() -> &'static [PathBuf; 2] {
    static BUILDS: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUILDS.get_or_init(|| {
        ["one", "two"].map(|name| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("macho").join(name);
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/macos/cross.sh");
            let status = Command::new(script).arg("build").arg(&folder).status().expect("a shell");
            assert!(status.success(), "{script} build {} failed", folder.display());
            folder
        })
    })
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(builds()[0].join(name)).expect("built")
}

/// What the tests need of one file's header.
struct Header {
    cpu: (u32, u32),
    kind: u32,
    commands: Vec<u32>,
    libraries: BTreeSet<String>,
    id: Option<String>,
    /// Platform, and oldest system as X.Y.Z in nibbles.
    platform: (u32, u32),
    signature: std::ops::Range<usize>,
}

fn header(bytes: &[u8]) -> Header {
    let header = MachHeader64::<Endianness>::parse(bytes, 0).expect("Mach-O");
    let endian = header.endian().expect("an order");
    let mut found = Header {
        cpu: (header.cputype(endian), header.cpusubtype(endian)),
        kind: header.filetype(endian),
        commands: Vec::new(),
        libraries: BTreeSet::new(),
        id: None,
        platform: (0, 0),
        signature: 0..0,
    };
    let mut commands = header.load_commands(endian, bytes, 0).expect("load commands");
    while let Some(command) = commands.next().expect("a load command") {
        found.commands.push(command.cmd());
        let name = |dylib: macho::Dylib<Endianness>| {
            let name = command.string(endian, dylib.name).expect("a name");
            String::from_utf8(name.to_vec()).expect("UTF-8")
        };
        match command.variant().expect("a known command") {
            LoadCommandVariant::Dylib(dylib) => _ = found.libraries.insert(name(dylib.dylib)),
            LoadCommandVariant::IdDylib(dylib) => found.id = Some(name(dylib.dylib)),
            LoadCommandVariant::BuildVersion(version) => {
                found.platform = (version.platform.get(endian), version.minos.get(endian));
            }
            LoadCommandVariant::LinkeditData(data) if command.cmd() == macho::LC_CODE_SIGNATURE => {
                let start = data.dataoff.get(endian) as usize;
                found.signature = start..start + data.datasize.get(endian) as usize;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn both_are_arm64_for_macos_13() {
    for (name, kind) in [(LIBRARY, macho::MH_DYLIB), (PROBE, macho::MH_EXECUTE)] {
        let header = header(&read(name));
        assert_eq!(header.cpu, (macho::CPU_TYPE_ARM64, macho::CPU_SUBTYPE_ARM64_ALL), "{name}: not arm64e");
        assert_eq!(header.kind, kind, "{name}");
        assert_eq!(header.platform, (macho::PLATFORM_MACOS, 13 << 16), "{name}");
    }
    assert_eq!(header(&read(LIBRARY)).id.as_deref(), Some("@rpath/libferry_metal_shim.dylib"));
}

#[test]
fn only_the_allowed_libraries_are_loaded() {
    let libraries = |name| header(&read(name)).libraries.into_iter().collect::<Vec<_>>();
    assert_eq!(libraries(LIBRARY), [METAL, SYSTEM, OBJC]);
    assert_eq!(libraries(PROBE), [SYSTEM, OBJC]);
}

#[test]
fn load_commands_are_the_plain_ones() {
    let allowed = BTreeSet::from([
        macho::LC_SEGMENT_64,
        macho::LC_ID_DYLIB,
        macho::LC_LOAD_DYLIB,
        macho::LC_LOAD_DYLINKER,
        macho::LC_MAIN,
        macho::LC_DYLD_INFO_ONLY,
        macho::LC_DYLD_CHAINED_FIXUPS,
        macho::LC_DYLD_EXPORTS_TRIE,
        macho::LC_SYMTAB,
        macho::LC_DYSYMTAB,
        macho::LC_UUID,
        macho::LC_BUILD_VERSION,
        macho::LC_SOURCE_VERSION,
        macho::LC_FUNCTION_STARTS,
        macho::LC_DATA_IN_CODE,
        macho::LC_CODE_SIGNATURE,
    ]);
    for name in [LIBRARY, PROBE] {
        let commands = header(&read(name)).commands;
        let strange: Vec<&u32> = commands.iter().filter(|command| !allowed.contains(command)).collect();
        assert!(strange.is_empty(), "{name}: {strange:x?}");
    }
}

#[test]
fn the_library_exports_its_mark_and_runs_one_constructor() {
    let bytes = read(LIBRARY);
    let file = File::parse(&*bytes).expect("Mach-O");
    let exports: Vec<_> =
        file.exports().expect("exports").iter().map(|export| export.name().to_vec()).collect();
    assert_eq!(exports, [b"_FERRY_METAL_SHIM_VERSION".to_vec()]);
    let constructors = file.sections().find(|section| {
        section.name().is_ok_and(|name| name == "__mod_init_func" || name == "__init_offsets")
    });
    let constructors = constructors.expect("a constructor");
    let entry = if constructors.name() == Ok("__mod_init_func") { 8 } else { 4 };
    assert_eq!(constructors.size(), entry);
}

#[test]
fn the_library_imports_nothing_unexpected() {
    let bytes = read(LIBRARY);
    let file = File::parse(&*bytes).expect("Mach-O");
    let undefined = file
        .symbols()
        .filter(ObjectSymbol::is_undefined)
        .map(|symbol| symbol.name().expect("UTF-8").to_owned());
    let imports: BTreeSet<String> = undefined.collect();
    let strange: Vec<&String> = imports.iter().filter(|name| !IMPORTS.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}");
    // The list itself must not grow stale: everything that matters is used.
    for name in
        ["_method_setImplementation", "_class_addMethod", "_unsetenv", "_MTLCreateSystemDefaultDevice"]
    {
        assert!(imports.contains(name), "{name} is not imported: is this the shim?");
    }
}

/// The research hooks that the shim leaves out, families that it never claims, and this machine's paths.
#[test]
fn no_forbidden_string_is_inside() {
    let home = std::env::var("HOME").expect("HOME");
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_str().expect("UTF-8");
    let anywhere = [home.as_str(), workspace, "/.cargo/registry", "/rustup/toolchains"];
    let in_the_library = [
        "recommendedMaxWorkingSetSize",
        "featureProfile",
        "supportsFeatureSet",
        "newResidencySet",
        "RUST_BACKTRACE",
        "panicked at",
    ];
    let contains =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    for name in [LIBRARY, PROBE] {
        let bytes = read(name);
        for text in anywhere {
            assert!(text.len() < 2 || !contains(&bytes, text), "{name} has {text}");
        }
    }
    let library = read(LIBRARY);
    for text in in_the_library {
        assert!(!contains(&library, text), "{LIBRARY} has {text}");
    }
    // The search itself works: these must be there.
    for text in [
        "AppleParavirtDevice",
        "supportsFamily:",
        "FERRY_METAL_APPLE_FAMILY_MAX",
        "LUME_METAL_APPLE_FAMILY_MAX",
    ] {
        assert!(contains(&library, text), "{LIBRARY} lacks {text}");
    }
}

#[test]
fn the_library_is_small() {
    let length = read(LIBRARY).len();
    assert!(length <= LIBRARY_LENGTH_MAX, "{length} bytes");
}

#[test]
fn signatures_are_ad_hoc_and_every_page_fits() {
    for name in [LIBRARY, PROBE] {
        let bytes = read(name);
        let range = header(&bytes).signature;
        check_signature(&bytes, range.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        // One bit of the code, of the load commands, and of the last page before the signature.
        for at in [4096 * 2, 40, range.start - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(
                check_signature(&damaged, range.clone()).is_err(),
                "{name}: a damaged byte {at} was not noticed"
            );
        }
    }
}

/// Checks the code directory of a signature: ad-hoc, SHA-256, and the hash of every page before it.
fn check_signature(file: &[u8], range: std::ops::Range<usize>) -> Result<(), String> {
    let signature = file.get(range.clone()).ok_or("no signature")?;
    let number = |blob: &[u8], at: usize| {
        blob.get(at..at + 4).map(|b| u32::from_be_bytes(b.try_into().expect("four")) as usize)
    };
    let directory = (0..number(signature, 8).ok_or("no blobs")?)
        .filter_map(|index| signature.get(number(signature, 16 + 8 * index)?..))
        .find(|blob| number(blob, 0) == Some(0xfade_0c02))
        .ok_or("no code directory")?;
    let field = |at| number(directory, at).ok_or("a short code directory");
    let (flags, hashes, pages, limit) = (field(12)?, field(16)?, field(28)?, field(32)?);
    let (hash_length, hash_kind, page) = (directory[36] as usize, directory[37], 1usize << directory[39]);
    if flags & 2 == 0 || hash_kind != 2 || hash_length != 32 {
        return Err(format!("flags {flags:x}, hash kind {hash_kind}"));
    }
    if limit != range.start || pages != limit.div_ceil(page) {
        return Err(format!("{pages} pages up to {limit}, the signature begins at {}", range.start));
    }
    for (index, content) in file[..limit].chunks(page).enumerate() {
        let expected =
            directory.get(hashes + index * 32..hashes + (index + 1) * 32).ok_or("too few hashes")?;
        if Sha256::digest(content).as_slice() != expected {
            return Err(format!("page {index} does not fit"));
        }
    }
    Ok(())
}

#[test]
fn two_builds_have_the_same_bytes() {
    let [one, two] = builds();
    for name in [LIBRARY, PROBE] {
        let bytes = |folder: &PathBuf| std::fs::read(folder.join(name)).expect("built");
        assert!(bytes(one) == bytes(two), "{name} differs between {} and {}", one.display(), two.display());
    }
}

/// macOS is no afterthought: everything, not only what is linked here, keeps type-checking for it.
#[test]
fn the_whole_workspace_type_checks_for_macos() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/macos/cross.sh");
    let status = Command::new(script).arg("check").status().expect("a shell");
    assert!(status.success(), "{script} check failed");
}
