//! A model store on the host: what it has does not cross, whatever happens to it, and the answer is the native one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferry_protocol::calls::CallCode;
use ferry_protocol::hello::DeviceFlags;
use ferry_protocol::ids::{BufferId, StreamId};
use ferry_protocol::request::{BufferValue, StoredHeader, TensorRange};
use ferry_protocol::status::Status;
use ferry_protocol::store::PieceHash;
use ferry_tests::artifacts::Store;
use ferry_tests::checkout;
use ferry_tests::daemon::{Daemon, Session};
use ferry_tests::llama::{Completion, Device, VULKAN_DEVICES};

use crate::guest::{Guest, bytes_of};
use crate::testbed::{Testbed, run};

const TOKENS: u32 = 8;
/// In the buffers of guests by hand.
const FILL: u8 = 0x5a;
const PIECE: usize = 1 << 20;
/// What crosses of a session without its weights: messages, norms, inputs, and 192 KiB of logits for each token.
const REST_BYTES_MAX: u64 = 4 << 20;

/// `ferryd store VERB` on the store in the test's folder.
fn store(bed: &Testbed, verb: &str, words: &[&Path]) -> Command {
    let mut command = Command::new(&checkout::binaries().unwrap().ferryd);
    command.args(["store", verb, "--model-store"]).arg(dir(bed)).args(words);
    command
}

fn dir(bed: &Testbed) -> PathBuf {
    bed.dir().join("store")
}

/// The model's copy in the store.
fn data(bed: &Testbed) -> PathBuf {
    dir(bed).join(bed.model.file_name().unwrap())
}

fn index(bed: &Testbed) -> PathBuf {
    let mut name = data(bed).into_os_string();
    name.push(".index");
    name.into()
}

/// A store with the model in it.
fn filled(bed: &Testbed) {
    fs::create_dir(dir(bed)).unwrap();
    run(&mut store(bed, "add", &[&bed.model]));
}

/// A daemon that offers the store.
fn offering(bed: &Testbed) -> Daemon {
    let adapt = |mut command: Command| {
        command.arg("--model-store").arg(dir(bed));
        Ok(command)
    };
    Daemon::adapted(&bed.llama.bin, "cpu", adapt).unwrap()
}

/// Without mapping its file, llama.cpp uploads a MiB at a time behind its own back where a device has events: Vulkan's do.
#[test]
fn weights_that_come_in_pieces_are_found_too() {
    let bed = Testbed::new();
    filled(&bed);
    let vulkan = Store::open().unwrap().node_vulkan().unwrap();
    let answer = |store: Option<PathBuf>| {
        let adapt = |mut command: Command| {
            command.env(VULKAN_DEVICES.0, VULKAN_DEVICES.1);
            command.args(store.iter().flat_map(|dir| ["--model-store".as_ref(), dir.as_os_str()]));
            Ok(command)
        };
        let daemon = Daemon::adapted(&vulkan.bin, "vulkan", adapt).unwrap();
        let completion = Completion { model: &bed.model, prompt: "A boat", tokens: 3, verbose: true };
        let mut command = completion.command(&bed.llama, &Device::Ferry(daemon.socket())).unwrap();
        let finished = run(command.arg("--no-mmap"));
        assert!(finished.stderr.contains("using async uploads for device Ferry0"), "{}", finished.tail());
        (finished.stdout, daemon.sessions(1).unwrap()[0].clone())
    };
    let (expected, without) = answer(None);
    let (text, with) = answer(Some(dir(&bed)));
    assert_eq!(text, expected);
    let crossed = |session: &Session| session.bytes_in + session.bytes_shared;
    assert_eq!((without.bytes_from_store, with.failures), (0, 0), "{without:?} {with:?}");
    assert!(with.bytes_from_store >= fs::metadata(&bed.model).unwrap().len() * 9 / 10, "{with:?}");
    // Lavapipe is asked how it would have each graph, which is more than anything else that crosses.
    assert!(crossed(&with) + with.bytes_from_store <= crossed(&without) + (1 << 20), "{without:?} {with:?}");
}

/// A decode whose answer is the native one: what its worker counted, and the bytes that its guest hashed.
fn decode(bed: &Testbed, daemon: &Daemon, transport: &str) -> (Session, u64) {
    let stats = bed.dir().join("stats");
    let mut command = bed.decode(&Device::Ferry(daemon.socket()), TOKENS);
    let ferry = run(command.env("FERRY_TRANSPORT", transport).env("FERRY_STATS", &stats));
    assert_eq!(ferry.stdout, bed.native(TOKENS), "{}", daemon.log());
    let lines = fs::read_to_string(stats).unwrap();
    let line: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let session = daemon.session_of(line["guest_pid"].as_u64().unwrap() as i32).unwrap();
    assert_eq!(session.failures, 0, "{}", daemon.log());
    (session, line["bytes_hashed"].as_u64().unwrap())
}

fn lines_with(daemon: &Daemon, words: &str) -> usize {
    daemon.log().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn weights_that_the_host_has_do_not_cross() {
    let bed = Testbed::new();
    filled(&bed);
    let daemon = offering(&bed);
    let weights = fs::metadata(&bed.model).unwrap().len() * 9 / 10;
    for transport in ["arena", "stream"] {
        let (session, hashed) = decode(&bed, &daemon, transport);
        println!("{transport}: {hashed} bytes hashed, {session:?}");
        assert!(session.bytes_from_store >= weights, "{session:?}");
        assert!(session.bytes_in + session.bytes_shared <= REST_BYTES_MAX, "{session:?}");
    }
    let log = daemon.log();
    assert!(!log.contains("WARN") && log.contains("models=1"), "{log}");
}

#[test]
fn without_a_store_nothing_is_hashed_and_without_the_model_little() {
    let bed = Testbed::new();
    let weights = fs::metadata(&bed.model).unwrap().len() * 9 / 10;
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let (session, hashed) = decode(&bed, &daemon, "arena");
    assert_eq!((hashed, session.bytes_from_store), (0, 0));
    assert!(session.bytes_in + session.bytes_shared >= weights, "{session:?}");

    fs::create_dir(dir(&bed)).unwrap();
    let daemon = offering(&bed);
    let (session, hashed) = decode(&bed, &daemon, "arena");
    // Eight questions in vain, of a piece each, for the buffer that the weights are in.
    assert!(hashed > 0 && hashed <= 8 * PIECE as u64, "{hashed} bytes hashed in vain");
    assert_eq!(session.bytes_from_store, 0);
    assert!(session.bytes_in + session.bytes_shared >= weights, "{session:?}");
}

#[test]
fn what_is_damaged_or_gone_is_sent_and_said_once() {
    let bed = Testbed::new();
    filled(&bed);
    let daemon = offering(&bed);
    let whole = decode(&bed, &daemon, "arena").0.bytes_from_store;
    let lost = |transport: &str| whole - decode(&bed, &daemon, transport).0.bytes_from_store;

    let file = OpenOptions::new().read(true).write(true).open(data(&bed)).unwrap();
    let (len, mut byte) = (file.metadata().unwrap().len(), [0]);
    file.read_exact_at(&mut byte, len / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 1], len / 2).unwrap();
    for (said, transport) in [(1, "arena"), (2, "stream")] {
        let lost = lost(transport);
        assert!(lost > 0 && lost <= PIECE as u64, "{lost} bytes for one that changed");
        assert_eq!(lines_with(&daemon, "is damaged: the bytes from"), said, "{}", daemon.log());
    }
    file.set_len(len / 3).unwrap();
    let lost_bytes = lost("arena");
    assert!(lost_bytes > whole / 2 && lost_bytes < whole, "{lost_bytes} of {whole}");
    file.set_len(0).unwrap();
    assert_eq!(lost("arena"), whole);
    assert_eq!(lines_with(&daemon, "is damaged: the bytes from"), 4, "{}", daemon.log());

    fs::write(index(&bed), "no index").unwrap();
    assert_eq!(lost("arena"), whole);
    assert_eq!(lines_with(&daemon, "is not used: its index"), 1, "{}", daemon.log());
    run(&mut store(&bed, "remove", &[Path::new(data(&bed).file_name().unwrap())]));
    assert_eq!(lost("arena"), whole);
    fs::remove_dir_all(dir(&bed)).unwrap();
    assert_eq!(lost("stream"), whole);
    assert_eq!(lines_with(&daemon, "WARN"), 6, "{}", daemon.log());
}

/// The store has a model of the same shape, with other bytes in its middle: what is the same is taken, and nothing else.
#[test]
fn another_model_of_the_same_shape_is_not_mixed_up_with_it() {
    let bed = Testbed::new();
    fs::create_dir(dir(&bed)).unwrap();
    let other = bed.dir().join("other.gguf");
    let mut bytes = fs::read(&bed.model).unwrap();
    let quarter = bytes.len() / 4;
    bytes[quarter..3 * quarter].iter_mut().step_by(64 << 10).for_each(|byte| *byte ^= 1);
    fs::write(&other, bytes).unwrap();
    run(&mut store(&bed, "add", &[&other]));
    let daemon = offering(&bed);
    let session = decode(&bed, &daemon, "arena").0;
    let crossed = session.bytes_in + session.bytes_shared;
    assert!(session.bytes_from_store > 0 && crossed >= quarter as u64, "{session:?}");
}

/// A buffer of a guest by hand, with something in it.
fn alloc(guest: &mut Guest, bytes: usize) -> BufferId {
    let buffer = guest.alloc(bytes);
    let fill = BufferValue { buffer, value: u64::from(FILL) };
    assert_eq!(guest.status(CallCode::CLEAR_BUFFER, bytemuck::bytes_of(&fill)), Status::OK);
    buffer
}

/// What it asks for.
fn ask(guest: &mut Guest, range: TensorRange, pieces: &[PieceHash]) -> (Status, Vec<u8>) {
    ask_on(guest, StreamId::SESSION, range, pieces)
}

fn ask_on(
    guest: &mut Guest,
    stream: StreamId,
    range: TensorRange,
    pieces: &[PieceHash],
) -> (Status, Vec<u8>) {
    let header = StoredHeader { range, pieces: pieces.len() as u32, reserved: 0 };
    let parameters = [bytemuck::bytes_of(&header), bytemuck::cast_slice(pieces)].concat();
    let (header, answer) = guest.ask(CallCode::SET_FROM_STORE, stream, &parameters).unwrap();
    (header.status, answer)
}

/// A piece of the model's weights and the next one, as the store has them.
fn stored_tensor(bed: &Testbed) -> Vec<u8> {
    let list = fs::read(index(bed)).unwrap();
    // Hash, place and length of each piece: index.rs.
    let mut pieces: Vec<(u64, u32)> = list[64..]
        .chunks(48)
        .map(|piece| {
            let number = |at: usize| u64::from_le_bytes(piece[at..at + 8].try_into().unwrap());
            (number(32), number(40) as u32)
        })
        .collect();
    pieces.sort_unstable();
    let at =
        pieces.windows(2).position(|two| two[0].1 as usize == PIECE && two[0].0 + PIECE as u64 == two[1].0);
    let two = &pieces[at.expect("two pieces in a row")..][..2];
    let mut bytes = vec![0; PIECE + two[1].1 as usize];
    File::open(data(bed)).unwrap().read_exact_at(&mut bytes, two[0].0).unwrap();
    bytes
}

#[test]
fn a_hostile_guest_gets_errors_and_the_session_goes_on() {
    let bed = Testbed::new();
    filled(&bed);
    let daemon = offering(&bed);
    let mut guest = Guest::new(&daemon);
    assert!(guest.devices[0].flags.contains(DeviceFlags::STORE));
    let bytes = stored_tensor(&bed);
    let hashes: Vec<PieceHash> = bytes.chunks(PIECE).map(PieceHash::of).collect();
    let buffer = alloc(&mut guest, bytes.len());
    let tensor = bytes_of(buffer, bytes.len());
    let range = |offset: usize, size: usize| TensorRange { tensor, offset: offset as u64, size: size as u64 };

    // Unknown hashes change nothing, known ones set what they name, and only where they fit.
    let unknown = [PieceHash([7; 32]), hashes[1]];
    assert_eq!(ask(&mut guest, range(0, bytes.len()), &unknown), (Status::OK, vec![0b10]));
    assert_eq!(guest.read(buffer, 4096), vec![FILL; 4096]);
    assert_eq!(ask(&mut guest, range(0, bytes.len()), &hashes), (Status::OK, vec![0b11]));
    assert_eq!(guest.read(buffer, 512 << 10), bytes[..512 << 10]);
    assert_eq!(ask(&mut guest, range(0, PIECE - 1), &hashes[..1]), (Status::OK, vec![0]));
    // A stream that is not there does not matter: the call belongs to none.
    let elsewhere = ask_on(&mut guest, StreamId(9), range(PIECE, bytes.len() - PIECE), &hashes[1..]);
    assert_eq!(elsewhere, (Status::OK, vec![1]));

    let mut status = |range, pieces: &[PieceHash]| ask(&mut guest, range, pieces).0;
    let many = vec![hashes[0]; 1025];
    assert_eq!(status(range(0, bytes.len()), &hashes[..1]), Status::MALFORMED);
    assert_eq!(status(range(0, PIECE), &hashes), Status::MALFORMED);
    assert_eq!(status(range(0, 0), &[]), Status::MALFORMED);
    assert_eq!(status(range(0, 1025 * PIECE), &many), Status::MALFORMED);
    assert_eq!(status(range(0, 1024 * PIECE), &many[1..]), Status::INVALID, "longer than its tensor");
    assert_eq!(status(range(1, bytes.len()), &hashes), Status::INVALID);
    assert_eq!(status(range(usize::MAX, PIECE), &hashes[..1]), Status::INVALID);
    let outside = TensorRange { tensor: bytes_of(buffer, bytes.len() + 1), ..range(0, PIECE) };
    assert_eq!(status(outside, &hashes[..1]), Status::INVALID);
    let stale = TensorRange { tensor: bytes_of(BufferId::new(1, 99), PIECE), ..range(0, PIECE) };
    assert_eq!(status(stale, &hashes[..1]), Status::STALE_HANDLE);
    assert_eq!(guest.status(CallCode::SET_FROM_STORE, &[0; 111]), Status::MALFORMED);

    // The file is cut off under the worker that has it open.
    File::create(data(&bed)).unwrap();
    assert_eq!(ask(&mut guest, range(0, bytes.len()), &hashes), (Status::OK, vec![0]));
    assert_eq!(guest.read(buffer, 512 << 10), bytes[..512 << 10]);
}

#[test]
fn a_daemon_without_a_store_offers_none_and_refuses_to_look() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut guest = Guest::new(&daemon);
    assert!(!guest.devices[0].flags.contains(DeviceFlags::STORE));
    let buffer = alloc(&mut guest, 4096);
    let range = TensorRange { tensor: bytes_of(buffer, 4096), offset: 0, size: 4096 };
    assert_eq!(ask(&mut guest, range, &[PieceHash([0; 32])]).0, Status::UNSUPPORTED);
    assert_eq!(guest.read(buffer, 16), vec![FILL; 16]);
}

#[test]
fn the_administrator_sees_what_is_there_and_what_is_damaged() {
    let bed = Testbed::new();
    filled(&bed);
    let name = bed.model.file_name().unwrap().to_str().unwrap().to_owned();
    let listed = run(&mut store(&bed, "list", &[])).stdout;
    assert!(listed.starts_with(&format!("{name}: ")) && listed.contains("MiB of weights"), "{listed}");
    assert_eq!(run(&mut store(&bed, "check", &[])).stdout, format!("{name}: whole\n"));
    let refused = |verb: &str, words: &[&Path], expected: &str| {
        let finished =
            ferry_tests::process::run(&mut store(&bed, verb, words), ferry_tests::llama::RUN_TIMEOUT);
        let finished = finished.unwrap().failure().unwrap();
        assert!(finished.stderr.contains(expected), "{}", finished.tail());
    };
    refused("add", &[&bed.model], "is in the store already");
    refused("add", &[&checkout::root().join("Cargo.toml")], "not a GGUF file");
    refused("remove", &[Path::new("nothing")], "there is no \"nothing\"");
    OpenOptions::new().write(true).open(data(&bed)).unwrap().write_all_at(&[0xff; 8], 90_000_000).unwrap();
    refused("check", &[], "damaged models: 1");
    run(&mut store(&bed, "remove", &[Path::new(&name)]));
    assert_eq!(fs::read_dir(dir(&bed)).unwrap().count(), 0);
    fs::remove_dir(dir(&bed)).unwrap();
    refused("list", &[], "cannot look into the model store");
}
