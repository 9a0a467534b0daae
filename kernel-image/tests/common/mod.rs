//! Small kernel images made on the spot.
#![allow(dead_code, reason = "each test file uses its own part")]

pub const LOAD: u32 = 1;
pub const NOTE: u32 = 4;

/// A program header with the data behind it.
pub struct Segment {
    pub kind: u32,
    pub vaddr: u64,
    pub paddr: u64,
    pub data: Vec<u8>,
    pub memory_bytes: u64,
}

impl Segment {
    pub fn load(paddr: u64, data: Vec<u8>) -> Self {
        let memory_bytes = data.len() as u64;
        Self { kind: LOAD, vaddr: paddr, paddr, data, memory_bytes }
    }
    /// A segment of `memory_bytes` zeros.
    pub fn bss(paddr: u64, memory_bytes: u64) -> Self {
        Self { kind: LOAD, vaddr: paddr, paddr, data: Vec::new(), memory_bytes }
    }
    pub fn notes(notes: &[Note]) -> Self {
        let data: Vec<u8> = notes.iter().flat_map(Note::bytes).collect();
        Self { kind: NOTE, vaddr: 0, paddr: 0, memory_bytes: data.len() as u64, data }
    }
}

/// A note of owner "Xen".
#[derive(Clone)]
pub struct Note(pub u32, pub Vec<u8>);

impl Note {
    pub fn number(kind: u32, value: u64) -> Self {
        Self(kind, value.to_le_bytes().to_vec())
    }
    pub fn text(kind: u32, value: &str) -> Self {
        Self(kind, [value.as_bytes(), b"\0"].concat())
    }
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(4u32.to_le_bytes());
        out.extend((self.1.len() as u32).to_le_bytes());
        out.extend(self.0.to_le_bytes());
        out.extend(b"Xen\0");
        out.extend(&self.1);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }
}

/// The notes of a Linux dom0 kernel.
pub fn linux_notes() -> Vec<Note> {
    vec![
        Note::text(6, "linux"),
        Note::text(7, "2.6"),
        Note::text(5, "xen-3.0"),
        Note::number(3, 0xffff_ffff_8000_0000),
        Note::number(15, 0x80_0000_0000),
        Note::number(1, 0xffff_ffff_8100_0040),
        Note::text(10, "!writable_page_tables|pae_pgdir_above_4gb"),
        Note(17, 0x8801u32.to_le_bytes().to_vec()),
        Note::text(9, "yes"),
        Note::text(8, "generic"),
        Note::number(16, 1),
        Note::number(4, 0),
    ]
}

/// `notes` without those of `kind`.
pub fn without(mut notes: Vec<Note>, kind: u32) -> Vec<Note> {
    notes.retain(|note| note.0 != kind);
    notes
}

/// A 64-bit ELF executable.
pub fn elf(segments: &[Segment]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(2u16.to_le_bytes());
    file.extend(62u16.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    file.extend(0x1000000u64.to_le_bytes());
    file.extend(64u64.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(0u32.to_le_bytes());
    for field in [64u16, 56, segments.len() as u16, 64, 0, 0] {
        file.extend(field.to_le_bytes());
    }
    let mut offset = 64 + 56 * segments.len() as u64;
    for s in segments {
        file.extend(s.kind.to_le_bytes());
        file.extend(7u32.to_le_bytes());
        for field in [offset, s.vaddr, s.paddr, s.data.len() as u64, s.memory_bytes, 4096] {
            file.extend(field.to_le_bytes());
        }
        offset += s.data.len() as u64;
    }
    for s in segments {
        file.extend(&s.data);
    }
    file
}

/// A kernel with some contents and a bss, as a distribution's would be, only smaller.
pub fn small_kernel(notes: &[Note]) -> Vec<u8> {
    let text = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
    let mut data = Segment::load(0x1200000, vec![0x5a; 5000]);
    data.memory_bytes = 9000;
    elf(&[Segment::load(0x1000000, text), data, Segment::notes(notes)])
}

/// A bzImage around a compressed payload. `size` is appended unless the compression states it itself.
pub fn bzimage(payload: &[u8], size: Option<u32>) -> Vec<u8> {
    let mut file = vec![0u8; 512 * 3];
    file[0x1f1] = 2;
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x206..0x208].copy_from_slice(&0x020fu16.to_le_bytes());
    let mut data = payload.to_vec();
    data.extend(size.iter().flat_map(|size| size.to_le_bytes()));
    file[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
    file[0x24c..0x250].copy_from_slice(&(data.len() as u32).to_le_bytes());
    file.resize(512 * 3 + 16, 0xaa);
    file.extend(data);
    file.extend([0xbb; 40]);
    file
}
