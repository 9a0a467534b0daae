//! The ends of a paused domain's rings that are its own: who stands in for it talks to xenstored in its name, and knows
//! that nothing is under way.
//!
//! xenstored finds a domain's ring by the indices that are in the page, and keeps none of its own. What it does keep is
//! what it has read of a message that is not whole, what it could not write yet, and the domain's watches. That there
//! is none of the first two shows when a request of ours is answered: answers come in the order of requests.
//!
//! Nobody has to be xenstored or xenconsoled: a domain may have granted these pages to another, which writes to them as
//! long as it likes. So whatever is read or waited for here has an end.

use crate::hypercall::foreign::WORDS;
use anyhow::{bail, ensure, Context, Result};
use control::told::tamed;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Kinds of messages (public/io/xs_wire.h).
pub const READ: u32 = 2;
pub const WATCH: u32 = 4;
pub const RESET_WATCHES: u32 = 21;
const EVENT: u32 = 15;
const ERROR: u32 = 16;
/// Bytes of a message's head: kind, request, transaction, bytes that follow; and how many of those there may be.
const HEAD: usize = 16;
const MAX_BODY: usize = 4096;
/// Bytes of each of its two rings, and the words behind them (public/io/xs_wire.h).
const RING: usize = 1024;
const REQ_CONS: usize = 512;
const REQ_PROD: usize = 513;
const RSP_CONS: usize = 514;
const RSP_PROD: usize = 515;
/// The same of a console (public/io/console.h): what it has said.
const OUT_CONS: usize = 770;
const OUT_PROD: usize = 771;
/// No kernel has so many requests that it comes to these numbers soon. Somewhere in them each begins who stands in:
/// answers to another one, which was killed, may come still.
const FIRST_REQUEST: u32 = 0x7464_0000;
const NR_REQUESTS: u32 = 0x1_0000;
/// So long xenstored has for an answer, and whoever reads the console for a page of text.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long a console is read at most, however it goes on: there is no more than a page.
const LONGEST: Duration = Duration::from_secs(3);
/// So many bytes are taken until an answer comes: some ten times what is told of the most nodes that are looked at.
const MOST_BYTES: usize = 1 << 20;
const A_MOMENT: Duration = Duration::from_micros(200);

/// A page that is shared with others.
pub type Words = [AtomicU32; WORDS];

/// An event that was for the domain: what has changed, and of which watch that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// As the domain would see it: relative, if its watch is.
    pub path: String,
    /// The watch's.
    pub token: String,
}

/// What came until the answer did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Events.
    pub fired: Vec<Fired>,
    /// Something was answered that the domain had asked.
    pub has_answers: bool,
}

/// Who is in the place of a paused domain.
pub struct StandIn<'a> {
    page: &'a Words,
    next: u32,
    /// Has xenstored look at its rings.
    wake: &'a mut dyn FnMut() -> Result<()>,
}

impl<'a> StandIn<'a> {
    /// On the page of its ring.
    pub fn new(page: &'a Words, wake: &'a mut dyn FnMut() -> Result<()>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { page, next: FIRST_REQUEST + now.subsec_nanos() % NR_REQUESTS, wake }
    }

    fn get(&self, word: usize) -> u32 {
        self.page[word].load(Ordering::Acquire)
    }

    /// Waits until the domain has asked nothing that xenstored has not read, and xenstored has said nothing that the
    /// domain has not.
    pub fn until_idle(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        while !is_idle(self.page) {
            ensure!(Instant::now() < until, "it has something under way in xenstore");
            (self.wake)()?;
            std::thread::sleep(A_MOMENT);
        }
        Ok(())
    }

    /// Asks xenstored for something in the domain's name, and takes all that comes until that is answered.
    pub fn ask(&mut self, kind: u32, parts: &[&str]) -> Result<Heard> {
        let (request, message) = self.message(kind, parts)?;
        let until = Instant::now() + PATIENCE;
        self.send(&message, until)?;
        let (mut heard, mut nr_bytes) = (Heard::default(), 0);
        loop {
            let (said, of, body) = self.receive(until)?;
            nr_bytes += HEAD + body.len();
            ensure!(nr_bytes <= MOST_BYTES, "xenstore tells it too much");
            match said {
                EVENT => {
                    let mut parts =
                        body.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
                    if let (Some(path), Some(token)) = (parts.next(), parts.next()) {
                        heard.fired.push(Fired { path, token });
                    }
                }
                ERROR if of == request => {
                    // Another domain may write into the ring.
                    bail!("xenstore refuses {}: {}", parts.join(" "), tamed(&String::from_utf8_lossy(&body)));
                }
                _ if of == request && said == kind => return Ok(heard),
                _ => heard.has_answers = true,
            }
        }
    }

    /// A request, and its number.
    fn message(&mut self, kind: u32, parts: &[&str]) -> Result<(u32, Vec<u8>)> {
        self.next += 1;
        let request = self.next;
        let body: Vec<u8> = parts.iter().flat_map(|part| part.bytes().chain([0])).collect();
        ensure!(HEAD + body.len() <= RING, "a request that is longer than the ring");
        let head = [kind, request, 0, u32::try_from(body.len())?];
        Ok((request, head.iter().flat_map(|word| word.to_le_bytes()).chain(body).collect()))
    }

    fn send(&mut self, message: &[u8], until: Instant) -> Result<()> {
        let from = self.get(REQ_PROD);
        // What the domain may have left is read first; if it is half a message, what follows is not understood, and not
        // answered.
        while self.get(REQ_CONS) != from {
            self.wait(until)?;
        }
        for (n, byte) in (0u32..).zip(message) {
            let at = from.wrapping_add(n) as usize % RING;
            let word = &self.page[at / 4];
            let shift = at % 4 * 8;
            let others = word.load(Ordering::Relaxed) & !(0xff << shift);
            word.store(others | u32::from(*byte) << shift, Ordering::Relaxed);
        }
        self.page[REQ_PROD].store(from.wrapping_add(u32::try_from(message.len())?), Ordering::Release);
        Ok(())
    }

    fn wait(&mut self, until: Instant) -> Result<()> {
        ensure!(Instant::now() < until, "xenstore does not answer in its name");
        (self.wake)()?;
        std::thread::sleep(A_MOMENT);
        Ok(())
    }

    /// Has xenstored forget what the domain watched, and throws away all that it says until it has answered that.
    ///
    /// The domain may have read a part of a message before it died, and of another one xenstored may have written a
    /// part, for which there was room. Nobody knows when the rest comes. So what comes is no row of messages until the
    /// answer is there.
    pub fn begin_anew(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let (request, message) = self.message(RESET_WATCHES, &[""])?;
        // Whoever has no room for answers need not read requests.
        while self.get(REQ_CONS) != self.get(REQ_PROD) {
            self.page[RSP_CONS].store(self.get(RSP_PROD), Ordering::Release);
            self.wait(until)?;
        }
        self.send(&message, until)?;
        let (mut last, mut nr_bytes) = (VecDeque::from([0; HEAD]), 0);
        loop {
            self.until_there(1, until)?;
            last.pop_front();
            last.extend(self.take(1)?);
            let [said, of, transaction, length] = words(last.make_contiguous());
            if [said, of, transaction] == [RESET_WATCHES, request, 0] {
                return self.skip(usize::try_from(length)?, until);
            }
            ensure!([said, of] != [ERROR, request], "xenstore does not forget its watches");
            nr_bytes += 1;
            ensure!(nr_bytes <= MOST_BYTES, "xenstore tells it too much");
        }
    }

    /// Takes so many bytes, whatever they say.
    fn skip(&mut self, length: usize, until: Instant) -> Result<()> {
        ensure!(length <= RING, "an answer of {length} bytes");
        self.until_there(length, until)?;
        self.take(length).map(|_| ())
    }

    /// The next message: its kind, of which request, and what it says. It is read as a whole, unless it is longer than
    /// the ring: who is killed leaves no half one.
    fn receive(&mut self, until: Instant) -> Result<(u32, u32, Vec<u8>)> {
        self.until_there(HEAD, until)?;
        let head = self.peek(HEAD)?;
        let [said, of, _, length] = words(&head);
        let length = usize::try_from(length)?;
        ensure!(length <= MAX_BODY, "a message of {length} bytes in its ring");
        let mut message = Vec::with_capacity(HEAD + length);
        while message.len() < HEAD + length {
            let part = (HEAD + length - message.len()).min(RING);
            self.until_there(part, until)?;
            message.extend(self.take(part)?);
        }
        Ok((said, of, message.split_off(HEAD)))
    }

    fn until_there(&mut self, count: usize, until: Instant) -> Result<()> {
        loop {
            let there = usize::try_from(self.get(RSP_PROD).wrapping_sub(self.get(RSP_CONS)))?;
            ensure!(there <= RING, "its ring cannot be");
            if there >= count {
                return Ok(());
            }
            self.wait(until)?;
        }
    }

    /// So many bytes that are there; there is room for others then.
    fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        let bytes = self.peek(count)?;
        let cons = self.get(RSP_CONS).wrapping_add(u32::try_from(count)?);
        self.page[RSP_CONS].store(cons, Ordering::Release);
        Ok(bytes)
    }

    /// So many bytes that are there.
    fn peek(&self, count: usize) -> Result<Vec<u8>> {
        let cons = self.get(RSP_CONS);
        let byte = |n: u32| {
            let at = RING + cons.wrapping_add(n) as usize % RING;
            self.page[at / 4].load(Ordering::Relaxed).to_le_bytes()[at % 4]
        };
        Ok((0..u32::try_from(count)?).map(byte).collect())
    }
}

/// The words of a message's head.
fn words(head: &[u8]) -> [u32; 4] {
    std::array::from_fn(|n| head.get(n * 4..n * 4 + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes))
}

/// Nothing is in a domain's rings.
pub fn is_idle(page: &Words) -> bool {
    let get = |word: usize| page[word].load(Ordering::Acquire);
    get(REQ_CONS) == get(REQ_PROD) && get(RSP_CONS) == get(RSP_PROD)
}

/// Waits until what a paused domain has said on its console was read; or nobody reads it.
pub fn until_read(console: &Words) -> Result<()> {
    let get = |word: usize| console[word].load(Ordering::Acquire);
    let (mut seen, mut until) = (get(OUT_CONS), Instant::now() + PATIENCE);
    let end = Instant::now() + LONGEST;
    while get(OUT_CONS) != get(OUT_PROD) {
        ensure!(Instant::now() < end, "its console is read for ever");
        let now = get(OUT_CONS);
        if now != seen {
            (seen, until) = (now, Instant::now() + PATIENCE);
        }
        if Instant::now() >= until {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The frame of one of its rings, as the toolstack has noted it.
pub fn frame(said: Option<String>) -> Result<u64> {
    said.and_then(|frame| frame.parse().ok()).context("the toolstack has not noted its frame")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread::{scope, sleep};

    fn page() -> Words {
        std::array::from_fn(|_| AtomicU32::new(0))
    }

    /// What comes of it while somebody else does something to its page again and again.
    fn beside<T>(does: impl Fn() + Sync, what: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    does();
                }
            });
            let done = what();
            is_over.store(true, Ordering::Relaxed);
            done
        })
    }

    #[test]
    fn who_tells_it_something_for_ever_is_not_heard_for_ever() {
        let page = page();
        // The ring is full of an event, again and again.
        for (n, word) in page.iter().enumerate().skip(RING / 4).take(RING / 4) {
            let event = [EVENT, 0, 0, 16, 0x61, 0x62, 0, 0];
            word.store(event[n % event.len()], Ordering::Relaxed);
        }
        let full = u32::try_from(RING).unwrap();
        let tells = || {
            page[RSP_PROD].store(page[RSP_CONS].load(Ordering::Acquire).wrapping_add(full), Ordering::Release);
            std::thread::yield_now();
        };
        let mut wake = || Ok(());
        let heard = beside(tells, || StandIn::new(&page, &mut wake).ask(READ, &["name"]));
        let error = heard.unwrap_err().to_string();
        // On a busy host the time is over first.
        assert!(error.contains("too much") || error.contains("does not answer"), "{error}");
    }

    #[test]
    fn what_is_said_in_its_ring_instead_of_xenstore_writes_no_lines_into_the_log() {
        let page = page();
        let body = b"EINVAL\n\x1b[2Jdisk: domain 5 is well\0\0\0";
        let message: Vec<u8> = [ERROR, FIRST_REQUEST + 1, 0, u32::try_from(body.len()).unwrap()]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .chain(*body)
            .collect();
        for (n, word) in message.chunks(4).enumerate() {
            page[RING / 4 + n].store(u32::from_le_bytes(word.try_into().unwrap()), Ordering::Relaxed);
        }
        page[RSP_PROD].store(u32::try_from(message.len()).unwrap(), Ordering::Relaxed);
        let mut wake = || Ok(());
        let mut stand_in = StandIn { next: FIRST_REQUEST, ..StandIn::new(&page, &mut wake) };
        let error = stand_in.ask(READ, &["name"]).unwrap_err().to_string();
        assert_eq!(error, "xenstore refuses name: EINVAL[2Jdisk: domain 5 is well");
    }

    #[test]
    fn a_console_that_is_read_for_ever_is_not_waited_for_for_ever() {
        let page = page();
        page[OUT_PROD].store(2, Ordering::Relaxed);
        let toggles = || {
            page[OUT_CONS].fetch_xor(1, Ordering::Relaxed);
            sleep(PATIENCE / 10);
        };
        let error = beside(toggles, || until_read(&page)).unwrap_err().to_string();
        assert!(error.contains("for ever"), "{error}");
        // Nobody reads it.
        until_read(&page).unwrap();
    }
}
