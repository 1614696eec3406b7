//! A store as its administrator and a worker use it, and what may have happened to its files in between.

use super::gguf::tests::model;
use super::{Shelf, Wanted, admin, index_path};
use ferry_protocol::store::{PieceHash, hash_pieces};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A tensor of two pieces and a rest, one of just enough bytes, and one of too few.
fn tensors() -> [Vec<u8>; 3] {
    let noise = |len: usize, seed: u32| {
        (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
    };
    [noise((2 << 20) + 300, 1), noise(64 << 10, 2), noise((64 << 10) - 1, 3)]
}

struct Store {
    dir: TempDir,
    model: PathBuf,
}

impl Store {
    /// With a model in it.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("outside").join("model.gguf");
        std::fs::create_dir_all(model.parent().unwrap()).unwrap();
        std::fs::create_dir(dir.path().join("store")).unwrap();
        let tensors = tensors();
        std::fs::write(&model, self::model(&tensors.each_ref().map(Vec::as_slice))).unwrap();
        let store = Self { dir, model };
        admin::add(&store.path(), &store.model).unwrap();
        store
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn data(&self) -> PathBuf {
        self.path().join("model.gguf")
    }

    /// Which pieces of the first tensor a new worker finds.
    fn held(&self) -> [bool; 3] {
        held(&mut Shelf::new(self.path()))
    }
}

fn held(shelf: &mut Shelf) -> [bool; 3] {
    let tensor = &tensors()[0];
    let mut pieces = tensor.chunks(1 << 20);
    let wanted: Vec<Wanted> =
        pieces.clone().map(|piece| Wanted { hash: PieceHash::of(piece), bytes: piece.len() }).collect();
    let mut held = Vec::new();
    shelf.fetch(&wanted, |found| {
        let piece = pieces.next().unwrap();
        assert!(found.is_none_or(|found| found == piece), "other bytes than asked for");
        held.push(found.is_some());
    });
    held.try_into().unwrap()
}

fn has(shelf: &mut Shelf, hash: PieceHash, bytes: usize) -> bool {
    let mut has = false;
    shelf.fetch(&[Wanted { hash, bytes }], |found| has = found.is_some());
    has
}

fn change(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn what_is_added_is_found_by_its_hash_and_length_and_nothing_else_is() {
    let store = Store::new();
    let entries = admin::list(&store.path()).unwrap();
    let entry = entries[0].as_ref().unwrap();
    assert_eq!(
        (entry.name.as_str(), entry.pieces, entry.bytes),
        ("model.gguf", 4, (2 << 20) + 300 + (64 << 10))
    );
    assert_eq!(std::fs::read(store.data()).unwrap(), std::fs::read(&store.model).unwrap());
    assert_eq!(store.held(), [true; 3]);
    let mut shelf = Shelf::new(store.path());
    let [_, enough, little] = tensors();
    let hash = hash_pieces(&enough)[0];
    assert!(has(&mut shelf, hash, enough.len()));
    assert!(!has(&mut shelf, hash, enough.len() - 1), "not of that length");
    assert!(!has(&mut shelf, PieceHash::of(&little), little.len()), "too small to be asked for");
    assert!(!has(&mut shelf, PieceHash([0; 32]), 1 << 20));
}

#[test]
fn a_model_is_added_once_and_removed() {
    let store = Store::new();
    let error = admin::add(&store.path(), &store.model).unwrap_err().to_string();
    assert!(error.contains("model.gguf is in the store already"), "{error}");
    admin::remove(&store.path(), "model.gguf").unwrap();
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 0);
    for name in ["model.gguf", "../outside/model.gguf", ""] {
        assert!(admin::remove(&store.path(), name).is_err(), "{name}");
    }
    assert!(store.model.exists());
    assert_eq!(store.held(), [false; 3]);
    admin::add(&store.path(), &store.model).unwrap();
    assert_eq!(store.held(), [true; 3]);
}

#[test]
fn damage_costs_the_pieces_that_it_hits() {
    let store = Store::new();
    let offset = std::fs::metadata(store.data()).unwrap().len() - (1 << 20);
    assert_eq!(admin::damaged_pieces(&store.path(), "model.gguf").unwrap(), 0);
    change(&store.data(), offset);
    assert_eq!(store.held(), [true, false, true]);
    assert_eq!(admin::damaged_pieces(&store.path(), "model.gguf").unwrap(), 1);
    let file = std::fs::OpenOptions::new().write(true).open(store.data()).unwrap();
    file.set_len(offset - 1).unwrap();
    assert_eq!(store.held(), [true, false, false]);
    file.set_len(0).unwrap();
    assert_eq!(store.held(), [false; 3]);
}

#[test]
fn a_file_that_is_cut_off_while_it_is_open_costs_no_worker_its_life() {
    let store = Store::new();
    let mut shelf = Shelf::new(store.path());
    assert_eq!(held(&mut shelf), [true; 3]);
    std::fs::File::create(store.data()).unwrap();
    assert_eq!(held(&mut shelf), [false; 3]);
}

#[test]
fn a_model_whose_files_are_gone_or_garbage_is_left_out_and_the_others_are_not() {
    let store = Store::new();
    let other = store.model.with_file_name("a-copy.gguf");
    std::fs::copy(&store.model, &other).unwrap();
    admin::add(&store.path(), &other).unwrap();
    let index = index_path(&store.path(), "a-copy.gguf");
    for garbage in [&b""[..], b"ferrymdl", &[0xff; 4096]] {
        std::fs::write(&index, garbage).unwrap();
        assert_eq!(store.held(), [true; 3]);
        assert!(admin::list(&store.path()).unwrap()[0].is_err());
        assert!(admin::damaged_pieces(&store.path(), "a-copy.gguf").is_err());
    }
    std::fs::remove_file(&index).unwrap();
    nix::unistd::mkfifo(&index, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(store.held(), [true; 3], "nobody waits for a pipe");
    std::fs::remove_file(store.data()).unwrap();
    assert_eq!(store.held(), [false; 3]);
    std::fs::remove_dir_all(store.path()).unwrap();
    assert_eq!(store.held(), [false; 3]);
}

/// A wrong record with a right checksum: whoever can write that can write anything, and still no result is wrong.
#[test]
fn an_index_that_lies_finds_nothing() {
    use super::index::{Index, Piece};
    let store = Store::new();
    let index = Index::read(&index_path(&store.path(), "model.gguf")).unwrap();
    let lie = |piece: &Piece| Piece { offset: piece.offset ^ 64, ..*piece };
    let lies = Index::new(index.pieces().iter().map(lie).collect());
    std::fs::write(index_path(&store.path(), "model.gguf"), lies.encode()).unwrap();
    assert_eq!(store.held(), [false; 3]);
}

#[test]
fn what_is_no_model_is_refused_with_its_name_and_leaves_nothing_behind() {
    let store = Store::new();
    let outside = store.model.parent().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = outside.join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    };
    let whole = std::fs::read(&store.model).unwrap();
    for (path, word) in [
        (file("readme.txt", b"This is no model."), "not a GGUF file"),
        (file("empty.gguf", b""), "ends within its header"),
        (file("half.gguf", &whole[..whole.len() / 2]), "is it complete?"),
        (file("small.gguf", &model(&[&[1; 100]])), "no tensor of 64 KiB"),
        (file("x.index", &whole), "no name"),
        (file(".hidden", &whole), "no name"),
        (outside.join("missing.gguf"), "missing.gguf"),
        (outside.to_owned(), "not a regular file"),
    ] {
        let error = format!("{:#}", admin::add(&store.path(), &path).unwrap_err());
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 2);
    let nowhere = store.dir.path().join("nowhere");
    let error = format!("{:#}", admin::add(&nowhere, &store.model).unwrap_err());
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn what_was_left_unfinished_is_no_model_and_is_swept_away() {
    let store = Store::new();
    let left = store.path().join(".unfinished-abc");
    std::fs::write(&left, "half a model").unwrap();
    // A copy without an index: the machine stopped in between.
    std::fs::rename(index_path(&store.path(), "model.gguf"), store.dir.path().join("gone")).unwrap();
    assert_eq!((store.held(), admin::list(&store.path()).unwrap().len()), ([false; 3], 0));
    admin::add(&store.path(), &store.model).unwrap();
    assert_eq!(store.held(), [true; 3]);
    assert!(!left.exists());
}
