//! The program at the other end of bench/plugin/wire.c: the loads' peer, in the machine's virtual time.
//!
//! QEMU waits while it is asked, so what it answers depends on nothing but the guest's frames and their times.

use super::load::Load;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// How long a frame is under way, in either direction.
const DELAY_NS: u64 = 10_000;

/// A wire, served in a thread of its own.
pub struct Wire {
    socket: PathBuf,
}

impl Wire {
    /// Starts it for the machine `name`.
    pub fn start(name: &str) -> Result<Self> {
        let socket = std::env::temp_dir().join(format!("tandem-{}-{name}.wire", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                // An error here is QEMU's end.
                let _ = serve(&stream);
            }
        });
        Ok(Self { socket })
    }

    /// Where QEMU's plugin connects.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn serve(stream: &UnixStream) -> Result<()> {
    let mut input = BufReader::with_capacity(1 << 16, stream);
    let mut output = stream;
    let mut load = Load::new();
    let mut under_way: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
    loop {
        let (now, len) = (number(&mut input)?, number(&mut input)?);
        let mut frame = vec![0; usize::try_from(len)?];
        input.read_exact(&mut frame)?;
        if len > 0 {
            under_way.push_back((now + DELAY_NS, frame));
        }
        let arrived = under_way.iter().take_while(|(at, _)| *at <= now).count();
        // A new frame says nothing before it has arrived; without one something else is due.
        let frames = if arrived > 0 || len == 0 {
            load.step(now, under_way.drain(..arrived).map(|(_, frame)| frame).collect())
        } else {
            Vec::new()
        };
        let due = [under_way.front().map(|(at, _)| *at), load.due(now)].into_iter().flatten().min();
        let mut answer = Vec::new();
        answer.extend(due.unwrap_or(0).to_le_bytes());
        answer.extend((frames.len() as u64).to_le_bytes());
        for frame in frames {
            answer.extend((now + DELAY_NS).to_le_bytes());
            answer.extend((frame.len() as u64).to_le_bytes());
            answer.extend(frame);
        }
        output.write_all(&answer)?;
    }
}

fn number(input: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
