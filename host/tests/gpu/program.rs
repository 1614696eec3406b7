//! Any bytes as a program of a hostile guest driver: the device must answer every chain, and share no page after it
//! has answered the command that took it back. Driven by proptest here and by a fuzzer in `host/fuzz`.

use ferry_host::gpu::ResourceId;
use ferry_protocol::virtgpu::{Command, Open, ReplyPlace};

use super::harness::*;

/// Takes the program's bytes one by one; 0 after its end.
struct Tape<'a>(std::slice::Iter<'a, u8>);

impl Tape<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    /// Few values, so that ids meet.
    fn small(&mut self) -> u32 {
        u32::from(self.byte() % 6)
    }

    fn wide(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Mostly whole pages of high RAM, sometimes anything.
    fn list(&mut self) -> Vec<(u64, u32)> {
        let count = self.byte() % 5;
        (0..count).map(|_| self.run()).collect()
    }

    fn run(&mut self) -> (u64, u32) {
        let (kind, page, pages) = (self.byte(), u64::from(self.byte()), u32::from(self.byte() % 4));
        match kind % 8 {
            0 => (u64::from(self.wide()) << (kind / 8), self.wide()),
            1 => (PRIVATE + page * PAGE, PAGE as u32),
            2 => (HIGH + page * PAGE + u64::from(kind), PAGE as u32),
            _ => (HIGH + page * PAGE, pages * PAGE as u32),
        }
    }

    fn command(&mut self) -> Vec<u8> {
        let (op, context, id) = (self.byte(), self.small(), self.small());
        match op % 20 {
            0 => ctx_create(context, 0),
            1 => command(0x201, context, &[]),
            2 => create_3d(id),
            3 => create_2d(id),
            4 => attach_backing(id, &self.list()),
            5 => of_resource(DETACH_BACKING, id),
            6 => of_resource(UNREF, id),
            7 | 8 => of_context(CTX_ATTACH, context, id),
            9 => of_context(CTX_DETACH, context, id),
            10 => create_blob(id, self.small(), u64::from(self.wide() % 20_000), &self.list()),
            11 | 12 => {
                self.exec(context, Command::Open(Open { arena: id, state_offset: u32::from(op & 0xf0) }, &[]))
            }
            13 => self.exec(context, Command::RegionAdd(id)),
            14 => self.exec(context, Command::RegionDrop(id)),
            15 => doorbell(context, u64::from(self.byte())),
            16 => self.exec(context, Command::Control(b"hello")),
            17 => self.mutated(context, id),
            _ => {
                let len = usize::from(self.byte());
                (0..len).map(|_| self.byte()).collect()
            }
        }
    }

    fn exec(&mut self, context: u32, what: Command<'_>) -> Vec<u8> {
        let kind = self.byte();
        let offset = if kind >= 0xf0 { self.wide() } else { u32::from(kind & 0x3c) };
        submit(context, &what.encode(ReplyPlace { resource: u32::from(kind % 4), offset, capacity: 64 }))
    }

    /// A well-formed command with one byte changed.
    fn mutated(&mut self, context: u32, id: u32) -> Vec<u8> {
        let mut bytes = match self.byte() % 4 {
            0 => attach_backing(id, &[(HIGH, PAGE as u32)]),
            1 => open(context, id),
            2 => create_blob(id, 1, PAGE, &[(HIGH, PAGE as u32)]),
            _ => of_context(CTX_ATTACH, context, id),
        };
        let at = usize::from(self.byte()) % bytes.len();
        bytes[at] = self.byte();
        bytes
    }
}

/// Runs one program and checks the device after each of its steps.
pub fn run(program: &[u8]) {
    let ram = Ram::new();
    let mut guest = Guest::new(&ram);
    let mut tape = Tape(program.iter());
    while tape.0.len() > 0 {
        match tape.byte() {
            0xf8.. => step_aside(&mut guest, tape.byte()),
            0xe0..0xf8 => chain_of_any_shape(&mut guest, &mut tape),
            _ => {
                let bytes = tape.command();
                let held_before = guest.snapshot().fences_armed;
                let head = guest.post(&bytes);
                let back = guest.collect();
                let answered = back.iter().find(|(id, _)| *id == head);
                let held = guest.snapshot().fences_armed > held_before;
                assert!(answered.is_some() || held, "{bytes:x?} was neither answered nor held");
                if let Some((_, len)) = answered {
                    check_answer(&guest, &bytes, &guest.answer(head, *len));
                }
            }
        }
        let workers = guest.workers.lock().unwrap();
        assert!(workers.open.len() <= 6, "one session a context");
    }
    // Whatever came before, the device still works, and in the end it has nothing.
    guest.ok(&command(0x103, 0, &[0; 6]));
    guest.device.lock().unwrap().reset();
    assert!(guest.workers().open.is_empty());
    guest.collect();
    guest.ok(&ctx_create(1, 0));
}

fn check_answer(guest: &Guest<'_>, request: &[u8], answer: &[u8]) {
    assert!(answer.len() >= 24);
    let code = word(answer, 0);
    assert!((OK..=0x1106).contains(&code) || (UNSPEC..=BAD_PARAMETER).contains(&code), "{code:#x}");
    let workers = guest.workers();
    if code == OK && request.len() >= 28 && [UNREF, DETACH_BACKING].contains(&word(request, 0)) {
        assert!(!workers.holds(ResourceId(word(request, 24))), "shared after it was taken back");
    }
    assert_eq!(workers.bytes(), guest.snapshot().mapped_bytes, "the books agree");
}

/// What is not a command: a pause, a changed memory table, a worker's news or end.
fn step_aside(guest: &mut Guest<'_>, what: u8) {
    let session = guest.workers().open.keys().min().copied();
    match (what % 5, session) {
        (0, _) => guest.device.lock().unwrap().stop(),
        (1, _) => {
            // Another descriptor of the same file: nothing moves.
            let table = Ram::table(&guest.ram.file, LOW_BYTES, HIGH_BYTES);
            guest.ram.atomic.lock().unwrap().replace(table);
            guest.device.lock().unwrap().set_memory(guest.ram.atomic.clone()).unwrap();
        }
        (2, Some(session)) => guest.wakeups.signal(session),
        (3, Some(session)) => guest.wakeups.lost(session),
        (4, _) => guest.workers().die_on_release = what > 127,
        _ => {}
    }
    guest.collect();
}

/// Three descriptors of the program's choice, offered at one of them.
fn chain_of_any_shape(guest: &mut Guest<'_>, tape: &mut Tape<'_>) {
    for index in 250..253 {
        let (addr, len) = tape.run();
        let (flags, next) = (u16::from(tape.byte() % 8), 248 + u16::from(tape.byte() % 8));
        guest.descriptor(index, addr, len, flags, next);
    }
    guest.offer(250);
    assert!(guest.collect().iter().any(|(head, _)| *head == 250), "comes back");
}

proptest::proptest! {
    #[test]
    fn any_program_is_survived(program in proptest::collection::vec(0u8.., 0..600)) {
        run(&program);
    }
}
