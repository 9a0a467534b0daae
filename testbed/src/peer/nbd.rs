//! A disk that the peer has for who asks for it by NBD, at port 10809: the protocol, without sockets. Bytes come in,
//! bytes go out.
//!
//! Of the handshake there is what every client can do: the fixed newstyle with one export, whatever its name. Of
//! requests there are reads, writes and flushes. Source:
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

use anyhow::{ensure, Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub const PORT: u16 = 10809;

const HELLO: &[u8; 8] = b"NBDMAGIC";
const OPTION: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// The server knows what to do with options that it does not know; and leaves 124 zeroes out that nobody needs.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const UNUSED: usize = 124;
const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const ACK: u32 = 1;
const UNSUPPORTED: u32 = 0x8000_0001;
/// There are flags, and flushes.
const DISK: u16 = 1 | 4;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
/// No request, and no option, of a client is longer.
const LONGEST: usize = 32 << 20;

/// The disk.
pub struct Export {
    file: File,
    bytes: u64,
}

impl Export {
    /// That is this file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path).with_context(|| path.display().to_string())?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes })
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, u32> {
        self.ensure_within(at, len)?;
        let mut data = vec![0; len];
        self.file.read_exact_at(&mut data, at).map_err(|_| EIO)?;
        Ok(data)
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<Vec<u8>, u32> {
        self.ensure_within(at, data.len())?;
        self.file.write_all_at(data, at).map_err(|_| EIO)?;
        Ok(Vec::new())
    }

    fn ensure_within(&self, at: u64, len: usize) -> Result<(), u32> {
        at.checked_add(len as u64).filter(|end| *end <= self.bytes).map(|_| ()).ok_or(EINVAL)
    }
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its flags come.
    Flags,
    /// It says what it wants.
    Options {
        is_short: bool,
    },
    /// It has the disk.
    Requests,
    Over,
}

/// A client.
pub struct Client {
    stage: Stage,
    /// What came, as far as it is not understood yet.
    came: Vec<u8>,
}

/// Bytes at the beginning of what came, and what to do then; `None`: there is more to come.
type Step = Option<(usize, Stage, Vec<u8>)>;

impl Client {
    /// One that has just connected, and what it is told.
    pub fn new() -> (Self, Vec<u8>) {
        let hello = [HELLO.as_slice(), OPTION, &(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes()].concat();
        (Self { stage: Stage::Flags, came: Vec::new() }, hello)
    }

    /// Whether it has the disk.
    pub fn has_disk(&self) -> bool {
        self.stage == Stage::Requests
    }

    /// Whether it wants no more.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Takes what came; gives what is to be sent. An error: that is no client.
    pub fn take(&mut self, bytes: &[u8], export: &Export) -> Result<Vec<u8>> {
        self.came.extend(bytes);
        let mut out = Vec::new();
        while let Some((used, stage, answer)) = self.step(export)? {
            self.came.drain(..used);
            self.stage = stage;
            out.extend(answer);
        }
        Ok(out)
    }

    fn step(&self, export: &Export) -> Result<Step> {
        match self.stage {
            Stage::Flags => Ok(self.came.get(..4).map(|flags| {
                let is_short = u32_at(flags, 0) & u32::from(NO_ZEROES) != 0;
                (4, Stage::Options { is_short }, Vec::new())
            })),
            Stage::Options { is_short } => self.option(is_short, export),
            Stage::Requests => self.request(export),
            Stage::Over => Ok(None),
        }
    }

    fn option(&self, is_short: bool, export: &Export) -> Result<Step> {
        let Some(head) = self.came.get(..16) else { return Ok(None) };
        ensure!(head[..8] == *OPTION, "no option begins so");
        let (option, len) = (u32_at(head, 8), u32_at(head, 12) as usize);
        ensure!(len <= LONGEST, "an option of {len} bytes");
        let used = 16 + len;
        if self.came.len() < used {
            return Ok(None);
        }
        if option == EXPORT_NAME {
            let unused = vec![0; if is_short { 0 } else { UNUSED }];
            let answer = [&export.bytes.to_be_bytes()[..], &DISK.to_be_bytes(), &unused].concat();
            return Ok(Some((used, Stage::Requests, answer)));
        }
        let (kind, stage) = match option {
            ABORT => (ACK, Stage::Over),
            _ => (UNSUPPORTED, self.stage),
        };
        let words = [option, kind, 0].map(u32::to_be_bytes).concat();
        Ok(Some((used, stage, [&OPTION_REPLY.to_be_bytes()[..], &words].concat())))
    }

    fn request(&self, export: &Export) -> Result<Step> {
        let Some(head) = self.came.get(..28) else { return Ok(None) };
        ensure!(u32_at(head, 0) == REQUEST, "no request begins so");
        let kind = u16::from_be_bytes([head[6], head[7]]);
        let at = u64::from_be_bytes(head[16..24].try_into()?);
        let len = u32_at(head, 24) as usize;
        ensure!(len <= LONGEST, "a request of {len} bytes");
        let used = 28 + if kind == WRITE { len } else { 0 };
        let Some(data) = self.came.get(28..used) else { return Ok(None) };
        let done = match kind {
            READ => export.read(at, len),
            WRITE => export.write(at, data),
            // Who loses power is somebody else: what is written is the host's.
            FLUSH => Ok(Vec::new()),
            DISCONNECT => return Ok(Some((used, Stage::Over, Vec::new()))),
            _ => Err(EINVAL),
        };
        let error = done.as_ref().err().copied().unwrap_or(0);
        let words = [REPLY, error].map(u32::to_be_bytes).concat();
        Ok(Some((used, self.stage, [&words, &head[8..16], &done.unwrap_or_default()].concat())))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests;
