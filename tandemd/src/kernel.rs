//! The kernel of a back end's domain: there has to be one, and the domain is never let run.
//!
//! An ELF file of two segments: the program, and the notes that the toolstack's domain builder asks for. If somebody
//! unpauses the domain it waits for nothing, for ever.

/// Where the file is loaded, and runs.
const BASE: u64 = 0xffff_ffff_8000_0000;
/// Length of the ELF header and of two program headers.
const HEADERS: u64 = 64 + 2 * 56;

/// `sched_op(SCHEDOP_poll, argument)` again and again; behind it the argument, which names no port and no time.
const PROGRAM: &[u8] = &[
    0xb8, 29, 0, 0, 0, // mov $29, %eax
    0xbf, 3, 0, 0, 0, // mov $3, %edi
    0x48, 0x8d, 0x35, 4, 0, 0, 0, // lea argument(%rip), %rsi
    0x0f, 0x05, // syscall
    0xeb, 0xeb, // jmp to the first
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// The file.
pub fn image() -> Vec<u8> {
    let notes = notes();
    let program = HEADERS + length(&notes);
    let end = program + length(PROGRAM);
    let mut elf = Vec::new();
    // 64 bits, little-endian, version 1.
    elf.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // A program for x86-64.
    half(&mut elf, &[2, 62]);
    word(&mut elf, &[1]);
    // Entry, program headers, no section headers, flags, lengths.
    long(&mut elf, &[BASE + program, 64, 0]);
    word(&mut elf, &[0]);
    half(&mut elf, &[64, 56, 2, 64, 0, 0]);
    // PT_LOAD, all rights: the whole file.
    word(&mut elf, &[1, 7]);
    long(&mut elf, &[0, BASE, 0, end, end, 4096]);
    // PT_NOTE.
    word(&mut elf, &[4, 4]);
    long(&mut elf, &[HEADERS, BASE + HEADERS, HEADERS, length(&notes), length(&notes), 4]);
    elf.extend_from_slice(&notes);
    elf.extend_from_slice(PROGRAM);
    elf
}

/// Numbers of the notes: public/elfnote.h.
fn notes() -> Vec<u8> {
    /// Bytes of all notes, which lie before the program: each has a head, a name and a value of eight bytes.
    const NOTES: u64 = 5 * (12 + 4 + 8);
    let mut notes = Vec::new();
    let mut note = |kind: u32, value: &[u8]| {
        word(&mut notes, &[4, u32::try_from(value.len()).unwrap_or(0), kind]);
        notes.extend_from_slice(b"Xen\0");
        notes.extend_from_slice(value);
        notes.resize(notes.len().next_multiple_of(4), 0);
    };
    note(1, &(BASE + HEADERS + NOTES).to_le_bytes()); // entry
    note(3, &BASE.to_le_bytes()); // virtual base
    note(4, &0_u64.to_le_bytes()); // offset of physical addresses
    note(5, b"xen-3.0\0"); // version of the interface
    note(8, b"generic\0"); // loader
    notes
}

fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

fn half(to: &mut Vec<u8>, values: &[u16]) {
    values.iter().for_each(|value| to.extend_from_slice(&value.to_le_bytes()));
}

fn word(to: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|value| to.extend_from_slice(&value.to_le_bytes()));
}

fn long(to: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| to.extend_from_slice(&value.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_is_where_the_program_is() {
        let image = image();
        let entry = |at: u64| {
            let at = usize::try_from(at).unwrap();
            u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
        };
        let program = BASE + length(&image) - length(PROGRAM);
        assert_eq!(entry(24), program, "in the header");
        assert_eq!(entry(HEADERS + 16), program, "in the first note");
        assert!(image.len() < 4096);
    }

    #[test]
    fn the_program_goes_round() {
        // From behind the jump back to the first instruction; from behind `lea` to the argument.
        let jump = PROGRAM.len() - 24;
        assert_eq!(jump as i64 + i64::from(PROGRAM[jump - 1] as i8), 0);
        assert_eq!(17 + usize::from(PROGRAM[13]), jump);
    }
}
