//! EXECBUFFER: Ferry's own commands, and the life of a session.

use std::collections::HashMap;

use ferry_protocol::virtgpu::{Command, CommandError, CommandHeader, Open, ReplyHeader, ReplyStatus};

use super::context::{ContextId, Mapped, Session, SessionGone, SessionId};
use super::counters::Counters;
use super::device::{Device, Done, Fault, Outcome, fixed};
use super::limits::{MAX_EXEC_BYTES, MAX_REPLY_BYTES};
use super::ram::Backing;
use super::resource::{Kind, ResourceId};
use super::wire::{self, CtrlType};

/// Outcome of an operation on a session.
type Status<T> = Result<T, ReplyStatus>;

impl Device {
    /// SUBMIT_3D. An operation that is refused is still an answered command if the guest named a place for the
    /// reply; otherwise it is an error of the command, for the guest's kernel log.
    pub(super) fn submit(&mut self, id: ContextId, request: &[u8]) -> Outcome {
        Counters::add(&self.counters.execbuffers);
        let command: wire::Submit = fixed(request)?;
        let bytes = &request[size_of_val(&command)..];
        let size = command.size as usize;
        if size > MAX_EXEC_BYTES || size > bytes.len() {
            let why = format_args!(
                "EXECBUFFER of {size} bytes with {} sent; at most {MAX_EXEC_BYTES}",
                bytes.len()
            );
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        self.context(id)?;
        let invalid = |why: CommandError| Fault::new(CtrlType::ERR_INVALID_PARAMETER, why);
        let header = CommandHeader::parse(&bytes[..size]).map_err(invalid)?;
        self.check_reply_place(id, &header)?;
        let command = match Command::parse(&header, &bytes[..size]) {
            Ok(command) => command,
            Err(error) => {
                let unknown = matches!(error, CommandError::UnknownOp(_));
                let status = if unknown { ReplyStatus::UNKNOWN_OP } else { ReplyStatus::MALFORMED };
                self.reply(&header, status, &[])?;
                return Err(invalid(error));
            }
        };
        self.run(id, &header, command)
    }

    fn run(&mut self, id: ContextId, header: &CommandHeader, command: Command<'_>) -> Outcome {
        let status = match command {
            Command::Doorbell { arm } => return self.doorbell(id, arm),
            Command::Control(request) => {
                let reply = self.front.control(id, request);
                self.reply(header, ReplyStatus::OK, &reply)?;
                return Ok(Done::NOTHING);
            }
            Command::Open(open, message) => self.open(id, open, message),
            Command::RegionAdd(resource) => self.add_region(id, ResourceId(resource)),
            Command::RegionDrop(resource) => self.drop_region(id, ResourceId(resource)),
        };
        let status = status.err().unwrap_or(ReplyStatus::OK);
        self.reply(header, status, &[])?;
        if status != ReplyStatus::OK && header.reply_resource == 0 {
            let why = format_args!("operation {} refused with status {}", header.op.0, status.0);
            return Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, why));
        }
        Ok(Done::NOTHING)
    }

    /// A place that a reply can be written to, before anything is done that deserves one.
    fn check_reply_place(&mut self, id: ContextId, header: &CommandHeader) -> Result<(), Fault> {
        if header.reply_resource == 0 {
            return Ok(());
        }
        let resource = ResourceId(header.reply_resource);
        let bad = |why: &str| {
            let why = format!("reply to resource {}: {why}", resource.0);
            Fault::new(CtrlType::ERR_INVALID_RESOURCE_ID, why)
        };
        if !self.context(id)?.attached.contains(&resource) {
            return Err(bad("not attached to the context"));
        }
        let known = self.known(resource)?;
        let end = u64::from(header.reply_offset) + u64::from(header.reply_capacity);
        if (header.reply_capacity as usize) < size_of::<ReplyHeader>() || end > known.bytes() {
            return Err(bad("no room there"));
        }
        known.word_address(u64::from(header.reply_offset)).map(drop).ok_or_else(|| bad("not a multiple of 4"))
    }

    /// Writes a reply where the guest wants it: bytes and length first, the status last.
    fn reply(&self, header: &CommandHeader, status: ReplyStatus, body: &[u8]) -> Result<(), Fault> {
        if header.reply_resource == 0 {
            return Ok(());
        }
        let lost = |_| Fault::new(CtrlType::ERR_INVALID_RESOURCE_ID, "the reply's pages are gone");
        let memory = self.memory().ok_or(super::resource::OutOfRange).map_err(lost)?;
        let resource = self.known(ResourceId(header.reply_resource))?;
        let at = u64::from(header.reply_offset);
        let room = (header.reply_capacity as usize - size_of::<ReplyHeader>()).min(MAX_REPLY_BYTES);
        let (status, body, len) = match body.len() {
            len if len <= room => (status, body, len),
            len => (ReplyStatus::TRUNCATED, &[][..], len),
        };
        resource.write(&memory, at + 4, &(len as u32).to_le_bytes()).map_err(lost)?;
        resource.write(&memory, at + size_of::<ReplyHeader>() as u64, body).map_err(lost)?;
        resource.publish(&memory, at, status.0).map_err(lost)
    }

    fn doorbell(&mut self, id: ContextId, arm: bool) -> Outcome {
        Counters::add(&self.counters.doorbells);
        let context = self.context(id)?;
        let Some(session) = context.session.as_ref().map(|session| session.id) else {
            // A guest that has not yet seen that its session is lost does nothing wrong.
            return match context.spent {
                true => Ok(Done::NOTHING),
                false => Err(Fault::new(CtrlType::ERR_INVALID_PARAMETER, "doorbell without a session")),
            };
        };
        if self.wakeups.is_lost(session) {
            return Ok(Done::NOTHING);
        }
        self.front.doorbell(session);
        Ok(if arm { Done::holding(session) } else { Done::NOTHING })
    }

    fn open(&mut self, id: ContextId, open: Open, message: &[u8]) -> Status<()> {
        let context = self.contexts.get(&id).ok_or(ReplyStatus::NO_SESSION)?;
        if context.spent {
            return Err(ReplyStatus::SESSION_EXISTS);
        }
        if self.wakeups.live_sessions() >= self.limits.sessions {
            return Err(ReplyStatus::LIMIT);
        }
        let arena = ResourceId(open.arena);
        let backing = self.shareable(id, arena)?;
        let word =
            self.resources.get(arena).and_then(|known| known.word_address(u64::from(open.state_offset)));
        let word = word.ok_or(ReplyStatus::MALFORMED)?;
        let mapped = self.admit(None, &backing)?;
        let session = SessionId(self.next_session);
        self.next_session += 1;
        // Registered first: the worker may be heard, or lost, before open() returns.
        self.wakeups.register(session, word);
        if let Err(refusal) = self.front.open(id, session, message, backing) {
            self.wakeups.forget(session, true);
            self.complain(format_args!("session of context {} refused: {refusal}", id.0));
            return Err(ReplyStatus::REFUSED);
        }
        Counters::add(&self.counters.sessions_opened);
        let session = Session { id: session, arena, mapped: HashMap::from([(arena, mapped)]) };
        if let Some(context) = self.contexts.get_mut(&id) {
            context.session = Some(session);
            context.spent = true;
        }
        Ok(())
    }

    fn add_region(&mut self, id: ContextId, resource: ResourceId) -> Status<()> {
        let session = self.live_session(id)?;
        if session.mapped.contains_key(&resource) {
            return Err(ReplyStatus::BAD_RESOURCE);
        }
        let number = session.id;
        let backing = self.shareable(id, resource)?;
        let mapped = self.admit(Some(self.live_session(id)?), &backing)?;
        if let Err(refusal) = self.front.add_region(number, resource, backing) {
            self.complain(format_args!("region {} of context {} refused: {refusal}", resource.0, id.0));
            return Err(ReplyStatus::REFUSED);
        }
        if let Some(session) = self.contexts.get_mut(&id).and_then(|context| context.session.as_mut()) {
            session.mapped.insert(resource, mapped);
        }
        Ok(())
    }

    fn drop_region(&mut self, id: ContextId, resource: ResourceId) -> Status<()> {
        let session = self.live_session(id)?;
        if session.arena == resource || !session.mapped.contains_key(&resource) {
            return Err(ReplyStatus::BAD_RESOURCE);
        }
        self.withdraw_from(id, resource, true);
        Ok(())
    }

    fn live_session(&self, id: ContextId) -> Status<&Session> {
        let session = self.contexts.get(&id).and_then(|context| context.session.as_ref());
        session.filter(|session| !self.wakeups.is_lost(session.id)).ok_or(ReplyStatus::NO_SESSION)
    }

    /// The pages of a resource that this context may share with its worker.
    fn shareable(&self, id: ContextId, resource: ResourceId) -> Status<Backing> {
        let attached = self.contexts.get(&id).is_some_and(|context| context.attached.contains(&resource));
        let known = self.resources.get(resource).filter(|known| attached && known.kind != Kind::Console);
        let pieces = known.and_then(|known| known.pieces.as_deref()).ok_or(ReplyStatus::BAD_RESOURCE)?;
        self.ram.backing(pieces).ok_or(ReplyStatus::BAD_RESOURCE)
    }

    /// Whether the quotas allow `backing` to be mapped, in addition to what `session` has.
    fn admit(&self, session: Option<&Session>, backing: &Backing) -> Status<Mapped> {
        let limits = &self.limits;
        let (bytes, extents) = session.map_or((0, 0), |session| (session.bytes(), session.extents()));
        let sessions = self.contexts.values().filter_map(|context| context.session.as_ref());
        let all: u64 = sessions.map(Session::bytes).sum();
        let fits = backing.bytes <= limits.region_bytes
            && bytes + backing.bytes <= limits.session_bytes
            && extents + backing.extents.len() <= limits.session_extents
            && all + backing.bytes <= limits.mapped_bytes
            && session.is_none_or(|session| session.mapped.len() <= limits.regions_per_session);
        let mapped = Mapped { bytes: backing.bytes, extents: backing.extents.len() };
        fits.then_some(mapped).ok_or(ReplyStatus::LIMIT)
    }

    /// Takes a resource's pages back from every session that has them. When it returns they are the guest's alone.
    /// Without `tell` the pages are not what they were: nothing is written into them.
    pub(super) fn withdraw(&mut self, resource: ResourceId, tell: bool) {
        let uses = |session: &Session| session.mapped.contains_key(&resource);
        let users = self.contexts.iter().filter(|(_, context)| context.session.as_ref().is_some_and(uses));
        for context in users.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.withdraw_from(context, resource, tell);
        }
    }

    /// The same for one context's session. Without its arena, or its worker, a session ends.
    pub(super) fn withdraw_from(&mut self, id: ContextId, resource: ResourceId, tell: bool) {
        let Some(session) = self.contexts.get_mut(&id).and_then(|context| context.session.as_mut()) else {
            return;
        };
        if session.mapped.contains_key(&resource) && session.arena == resource {
            self.end_session(id, tell);
        } else if session.mapped.remove(&resource).is_some() {
            let number = session.id;
            if self.front.release(number, resource) == Err(SessionGone) {
                self.end_session(id, tell);
            }
        }
    }

    /// Ends a context's session, if it has one. When it returns all its pages are the guest's alone.
    pub(super) fn end_session(&mut self, id: ContextId, tell: bool) {
        if let Some(session) = self.contexts.get_mut(&id).and_then(|context| context.session.take()) {
            self.wakeups.closing(session.id);
            self.front.close(session.id);
            self.wakeups.forget(session.id, tell);
        }
    }
}
