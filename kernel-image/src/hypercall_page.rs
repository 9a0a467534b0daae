//! The hypercall page: 128 entry points of 32 bytes, which a kernel calls with a hypercall's arguments in registers.
//!
//! Only kernels that ask for it have one; Linux has entry points of its own since 2025.

use xen_abi::hypercall::IRET;

const ENTRY_BYTES: usize = 32;
const INT3: u8 = 0xcc;

/// Fills `page`, 4096 bytes.
pub fn fill(page: &mut [u8]) {
    page.fill(INT3);
    for (number, entry) in (0u32..).zip(page.chunks_exact_mut(ENTRY_BYTES)) {
        let [n0, n1, n2, n3] = number.to_le_bytes();
        if number == IRET {
            // push rcx; push r11; push rax; mov eax, 23; syscall. The frame that iret wants is above these.
            entry[..11].copy_from_slice(&[0x51, 0x41, 0x53, 0x50, 0xb8, n0, n1, n2, n3, 0x0f, 0x05]);
        } else {
            // push rcx; push r11; mov eax, number; syscall; pop r11; pop rcx; ret
            let code = [0x51, 0x41, 0x53, 0xb8, n0, n1, n2, n3, 0x0f, 0x05, 0x41, 0x5b, 0x59, 0xc3];
            entry[..14].copy_from_slice(&code);
        }
    }
}
