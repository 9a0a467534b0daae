// From reset to Rust on the CPUs that the first one starts.
//
// Entered from: a start-up IPI, in real mode at the page below 1 MiB to which this code was copied.
// CPU state:    CS = that page >> 4, IP = 0, interrupts off; the three fields at the end were filled by smp.rs.
// Leaves to:    the 64-bit function at trampoline_entry, on the stack trampoline_stack, on the boot page tables.
//
// Addresses are those of a copy at TRAMPOLINE. Where the copy is elsewhere, smp.rs moves those that trampoline_addresses lists.

.section .rodata.trampoline, "a"
.code16
.global trampoline_start
trampoline_start:
    cli
    cld
    mov ax, cs
    mov ds, ax
    lgdt [gdtr_offset]
    mov eax, cr0
    or eax, 1
    mov cr0, eax
    .byte 0x66, 0xea                        // far jump, 32-bit offset
trampoline_jump_32:
    .long trampoline_32 - trampoline_start + {TRAMPOLINE}
    .short 0x08

.code32
trampoline_32:
    mov ax, 0x18
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, 1 << 5                         // CR4.PAE
    mov cr4, eax
    mov eax, offset root_addr
trampoline_after_root:
    mov eax, [eax]
    mov cr3, eax
    mov ecx, 0xc0000080                     // EFER.LME, NXE
    rdmsr
    or eax, (1 << 8) | (1 << 11)
    wrmsr
    mov eax, 0x80010033                     // CR0: as on the first CPU
    mov cr0, eax
    .byte 0xea
trampoline_jump_64:
    .long trampoline_64 - trampoline_start + {TRAMPOLINE}
    .short 0x10

.code64
trampoline_64:
    xor eax, eax
    mov fs, eax
    mov gs, eax
    xor ebp, ebp
    mov eax, offset stack_addr
trampoline_after_stack:
    mov rsp, [rax]
    mov eax, offset entry_addr
trampoline_after_entry:
    call [rax]
    ud2

.balign 8
trampoline_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff                // 0x08: 32-bit code
    .quad 0x00af9b000000ffff                // 0x10: 64-bit code
    .quad 0x00cf93000000ffff                // 0x18: data
trampoline_gdtr:
    .short trampoline_gdtr - trampoline_gdt - 1
trampoline_gdt_base:
    .long trampoline_gdt - trampoline_start + {TRAMPOLINE}
.balign 8
.global trampoline_root
trampoline_root:
    .quad 0
.global trampoline_stack
trampoline_stack:
    .quad 0
.global trampoline_entry
trampoline_entry:
    .quad 0
.global trampoline_end
trampoline_end:

// Where the copy has addresses, of 32 bits each; a MOV ends with its one.
.balign 4
.global trampoline_addresses
trampoline_addresses:
    .long trampoline_jump_32 - trampoline_start
    .long trampoline_after_root - trampoline_start - 4
    .long trampoline_jump_64 - trampoline_start
    .long trampoline_after_stack - trampoline_start - 4
    .long trampoline_after_entry - trampoline_start - 4
    .long trampoline_gdt_base - trampoline_start
.global trampoline_addresses_end
trampoline_addresses_end:

// Where the copy has these.
.set gdtr_offset, trampoline_gdtr - trampoline_start
.set root_addr, {TRAMPOLINE} + (trampoline_root - trampoline_start)
.set stack_addr, {TRAMPOLINE} + (trampoline_stack - trampoline_start)
.set entry_addr, {TRAMPOLINE} + (trampoline_entry - trampoline_start)
