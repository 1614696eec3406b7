//! Things that are not there, or not what they should be: one clear message, and nothing else is disturbed.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferry_protocol::calls::CallCode;
use ferry_protocol::frame::{HEADER_BYTES, Header};
use ferry_protocol::hello::{Hello, MAGIC, WelcomeHeader};
use ferry_protocol::ids::StreamId;
use ferry_protocol::status::Status;
use ferry_protocol::{VERSION_MAX, VERSION_MIN};
use ferry_tests::daemon::{self, Daemon};
use ferry_tests::llama::{Completion, Device, RUN_TIMEOUT};
use ferry_tests::process;

use crate::testbed::{Testbed, eventually, run};

/// ferryd finds out at its start.
const REFUSES_WITHIN: Duration = Duration::from_secs(10);

/// A program told to use the plug-in with this socket answers as natively, and says exactly one line about
/// it, which contains all of `words`.
fn runs_on_its_cpu(bed: &Testbed, socket: &Path, words: &[&str]) {
    let completion = Completion { model: &bed.model, prompt: "A boat", tokens: 12, verbose: false };
    let native = completion.run(&bed.llama, &Device::Cpu).unwrap();
    let alone = completion.run(&bed.llama, &Device::Chosen(socket.to_owned())).unwrap();
    answers_alone(&alone, &native, words);
}

fn answers_alone(alone: &process::Finished, native: &process::Finished, words: &[&str]) {
    assert_eq!(alone.stdout, native.stdout);
    let lines: Vec<&str> = alone.stderr.lines().filter(|line| line.contains("ferry: ")).collect();
    assert_eq!(lines.len(), 1, "one line from the plug-in: {lines:#?}\n{}", alone.tail());
    for word in words {
        assert!(lines[0].contains(word), "{word:?} is not in {:?}", lines[0]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

#[test]
fn without_a_daemon_there_is_one_line_and_the_program_computes_itself() {
    let bed = Testbed::new();
    let socket = bed.dir().join("nobody.sock");
    runs_on_its_cpu(&bed, &socket, &[text(&socket)]);
}

#[test]
fn a_socket_that_is_no_socket_is_named() {
    let bed = Testbed::new();
    let file = bed.dir().join("a-file");
    std::fs::write(&file, "no socket").unwrap();
    runs_on_its_cpu(&bed, &file, &[text(&file)]);
    runs_on_its_cpu(&bed, bed.dir(), &[text(bed.dir())]);
    let long = bed.dir().join("x".repeat(200));
    runs_on_its_cpu(&bed, &long, &[text(&long), "shorter"]);
}

/// The same command by a user to whom closed files are closed: root without the privilege to open them all.
fn without_privileges(command: &Command) -> Command {
    if !nix::unistd::geteuid().is_root() {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return same;
    }
    let mut setpriv = Command::new("setpriv");
    setpriv
        .arg("--bounding-set=-dac_override,-dac_read_search")
        .arg(command.get_program())
        .args(command.get_args());
    setpriv
}

#[test]
fn a_socket_that_must_not_be_opened_is_named() {
    let bed = Testbed::new();
    let socket = bed.dir().join("closed.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o000)).unwrap();
    let completion = Completion { model: &bed.model, prompt: "A boat", tokens: 12, verbose: false };
    let device = Device::Chosen(socket.clone());
    let mut command = without_privileges(&completion.command(&bed.llama, &device).unwrap());
    let alone = run(device.environment(&mut command).unwrap());
    let native = completion.run(&bed.llama, &Device::Cpu).unwrap();
    answers_alone(&alone, &native, &[text(&socket), "ermission"]);
}

/// Accepts one connection after the other and treats each with `serve`, until the test ends.
fn impostor(bed: &Testbed, name: &str, serve: fn(UnixStream)) -> std::path::PathBuf {
    let socket = bed.dir().join(name);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    socket
}

#[test]
fn a_daemon_that_speaks_something_else_is_refused() {
    let bed = Testbed::new();
    let chatty = impostor(&bed, "chatty.sock", |mut stream| {
        let _ = stream
            .write_all(b"220 mail.example.org ESMTP ready; this is no ferry at all, whatever you ask\r\n");
        let _ = stream.read(&mut [0; 512]);
    });
    runs_on_its_cpu(&bed, &chatty, &[]);
    let gone = impostor(&bed, "gone.sock", drop);
    runs_on_its_cpu(&bed, &gone, &[]);
}

#[test]
fn a_daemon_that_says_nothing_is_given_up() {
    let bed = Testbed::new();
    let silent = impostor(&bed, "silent.sock", |mut stream| {
        std::thread::spawn(move || while stream.read(&mut [0; 512]).is_ok_and(|length| length > 0) {});
    });
    runs_on_its_cpu(&bed, &silent, &[]);
}

/// An answer to every HELLO: versions 700 to 800, and nothing in common.
fn newer_daemon(mut stream: UnixStream) {
    let mut request = [0; HEADER_BYTES + size_of::<Hello>()];
    if stream.read_exact(&mut request).is_err() {
        return;
    }
    let header: Header = bytemuck::pod_read_unaligned(&request[..HEADER_BYTES]);
    let welcome = WelcomeHeader { magic: MAGIC, version: 700, version_max: 800, devices: 0 };
    let payload_len = u32::try_from(size_of::<WelcomeHeader>()).unwrap();
    let reply = Header { payload_len, ..header.reply(Status::VERSION) };
    let _ = stream.write_all(&[bytemuck::bytes_of(&reply), bytemuck::bytes_of(&welcome)].concat());
}

#[test]
fn a_daemon_of_another_version_is_named_with_both_versions() {
    let bed = Testbed::new();
    let socket = impostor(&bed, "newer.sock", newer_daemon);
    runs_on_its_cpu(&bed, &socket, &["700", &VERSION_MAX.to_string()]);
}

#[test]
fn a_client_of_another_version_is_told_which_ones_there_are() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    let hello = Hello { magic: MAGIC, version_min: 700, version_max: 800, reserved: 0 };
    let payload_len = u32::try_from(size_of::<Hello>()).unwrap();
    let header = Header { payload_len, ..Header::request(CallCode::HELLO, StreamId::SESSION, 1) };
    stream.write_all(&[bytemuck::bytes_of(&header), bytemuck::bytes_of(&hello)].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let (reply, welcome) = answer.split_at(HEADER_BYTES);
    let reply: Header = bytemuck::pod_read_unaligned(reply);
    let welcome: WelcomeHeader = bytemuck::pod_read_unaligned(welcome);
    assert_eq!((reply.seq, reply.status), (1, Status::VERSION));
    assert_eq!((welcome.version, welcome.version_max), (VERSION_MIN, VERSION_MAX));
    eventually("the log says so", REFUSES_WITHIN, || daemon.log().contains("700 to 800"));
}

#[test]
fn clients_that_speak_something_else_disturb_nobody() {
    let bed = Testbed::new();
    let daemon = Daemon::start(&bed.llama.bin).unwrap();
    let device = Device::Ferry(daemon.socket());
    let running = process::spawn(&mut bed.decode(&device, 48)).unwrap();
    let _silent = UnixStream::connect(daemon.socket()).unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 65536], &[0; 65536], &[1], &[]] {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // The daemon may close before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // It must hang up, with or without a last word, not wait for more.
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{bytes:.20?}: {error}")
            }
        }
    }
    assert_eq!(running.wait(RUN_TIMEOUT).unwrap().success().unwrap().stdout, bed.native(48));
    assert_eq!(run(&mut bed.decode(&device, 4)).stdout, bed.native(4));
}

/// ferryd gives up at once, with a message that contains all of `words`.
fn ferryd_refuses(command: &mut Command, words: &[&str]) {
    let finished = process::run(command, REFUSES_WITHIN).unwrap().failure().unwrap();
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is not in\n{}", finished.tail());
    }
    assert!(!finished.stderr.contains("panicked"), "{}", finished.tail());
}

#[test]
fn a_wrong_ggml_folder_is_named() {
    let bed = Testbed::new();
    let missing = bed.dir().join("missing");
    ferryd_refuses(&mut daemon::command(&missing, bed.dir()).unwrap(), &[text(&missing)]);
    let empty = bed.dir().join("empty");
    std::fs::create_dir(&empty).unwrap();
    ferryd_refuses(&mut daemon::command(&empty, bed.dir()).unwrap(), &[text(&empty), "libggml-base"]);
    let library = "libggml-base.so";
    std::os::unix::fs::symlink(bed.llama.bin.join(library), empty.join(library)).unwrap();
    ferryd_refuses(&mut daemon::command(&empty, bed.dir()).unwrap(), &[text(&empty), "libggml-cpu"]);
}

#[test]
fn a_library_that_is_none_is_named() {
    let bed = Testbed::new();
    let broken = bed.dir().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("libggml-base.so"), "no library").unwrap();
    std::fs::write(broken.join("libggml-cpu.so"), "no library").unwrap();
    ferryd_refuses(&mut daemon::command(&broken, bed.dir()).unwrap(), &[text(&broken)]);
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_stale_one_is_replaced() {
    let bed = Testbed::new();
    let listening = UnixListener::bind(bed.dir().join("ferry.sock")).unwrap();
    let socket = bed.dir().join("ferry.sock");
    ferryd_refuses(&mut daemon::command(&bed.llama.bin, bed.dir()).unwrap(), &[text(&socket)]);
    assert!(UnixStream::connect(&socket).is_ok(), "the other's socket was taken away");

    drop(listening);
    assert!(socket.exists() && UnixStream::connect(&socket).is_err(), "a stale socket");
    let mut daemon = process::spawn(&mut daemon::command(&bed.llama.bin, bed.dir()).unwrap()).unwrap();
    daemon.wait_until("listening", REFUSES_WITHIN, |_| UnixStream::connect(&socket).is_ok()).unwrap();
    assert_eq!(run(&mut bed.decode(&Device::Ferry(socket), 4)).stdout, bed.native(4));
}
