// From the boot loader to Rust on the first CPU.
//
// Entered from: a Multiboot-1 or Multiboot-2 loader, in 32-bit protected mode without paging, interrupts off.
// CPU state:    EAX = the loader's magic number, EBX = physical address of its information structure.
// Leaves to:    boot_main(magic, info) on the boot stack, in long mode on the boot page tables.
//
// The boot page tables are data, so that filling them costs no instructions: the first 4 GiB appear at 0 (dropped with
// these tables) and at the direct map, and 8 MiB from 2 MiB on appear at the image's linked address. The same tables
// serve once more when the other CPUs start (see smp.rs), which is why they are not thrown away.

.section .boot.header, "aw"
.balign 8
mb1_header:
    .long 0x1badb002                        // magic
    .long 0x00010003                        // page-aligned modules, memory map, address fields are valid
    .long -(0x1badb002 + 0x00010003)        // checksum
    .long mb1_header                        // header_addr
    .long image_load_start                  // load_addr
    .long image_load_end_phys               // load_end_addr
    .long image_end_phys                    // bss_end_addr
    .long tandem_start                      // entry_addr

.balign 8
mb2_header:
    .long 0xe85250d6                        // magic
    .long 0                                 // architecture: i386
    .long mb2_header_end - mb2_header
    .long -(0xe85250d6 + (mb2_header_end - mb2_header))
    .balign 8
    .short 1, 0                             // information request: required
    .long 20
    .long 1, 3, 6                           // command line, modules, memory map
    .balign 8
    .short 1, 1                             // information request: optional
    .long 32
    .long 2, 8, 12, 14, 15, 17              // loader name, screen, EFI system table, ACPI RSDP old and new, EFI memory map
    .balign 8
    .short 4, 1                             // consoles: optional
    .long 12
    .long 2                                 // a text mode will do
    .balign 8
    .short 5, 1                             // frame buffer: optional, of any size
    .long 20
    .long 0, 0, 0
    .balign 8
    .short 6, 1                             // page-aligned modules
    .long 8
    .balign 8
    .short 0, 0                             // end
    .long 8
mb2_header_end:

.section .boot.text, "awx"
.code32
.global tandem_start
tandem_start:
    cli
    cld
    mov esp, offset early_stack_top
    mov ebp, eax
    mov esi, ebx

    // Long mode and NX are what everything below stands on.
    mov eax, 0x80000000
    cpuid
    cmp eax, 0x80000001
    jb no_long_mode
    mov eax, 0x80000001
    cpuid
    test edx, 1 << 29
    jz no_long_mode
    test edx, 1 << 20
    jz no_long_mode

    // CR4.PAE; then the tables; then EFER.LME and NXE; then CR0.PG and WP, with the FPU left alone.
    mov eax, 1 << 5
    mov cr4, eax
    mov eax, offset boot_l4
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, (1 << 8) | (1 << 11)
    wrmsr
    mov eax, 0x80010033
    mov cr0, eax

    lgdt [boot_gdtr]
    mov eax, 0x10
    push eax
    mov eax, offset boot_long_mode
    push eax
    retf

    // No long mode: say so on the first serial port and on the screen's first line, then stop.
no_long_mode:
    mov ebx, offset no_long_mode_text
    mov edi, 0xb8000
put_character:
    mov al, [ebx]
    test al, al
    jz stop_here
    mov dx, 0x3f8
    out dx, al
    mov ah, 0x0f
    mov [edi], ax
    add edi, 2
    inc ebx
    jmp put_character
stop_here:
    hlt
    jmp stop_here

.code64
boot_long_mode:
    movabs rax, offset boot_high
    jmp rax

no_long_mode_text:
    .asciz "Tandem needs a CPU with 64-bit mode and no-execute pages.\r\n"

.balign 8
.global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff                // 0x08: 32-bit code
    .quad 0x00af9b000000ffff                // 0x10: 64-bit code
    .quad 0x00cf93000000ffff                // 0x18: data
boot_gdt_end:
boot_gdtr:
    .short boot_gdt_end - boot_gdt - 1
    .long boot_gdt
    .long 0

.balign 16
early_stack:
    .skip 256
early_stack_top:

// The boot page tables. Entry flags: 0x063 = present, writable, accessed, dirty; 0x0e3 = the same and large.
.section .boot.tables, "aw"
.balign 4096
.global boot_l4
boot_l4:
    .quad boot_l3_low + 0x063
    .skip 8 * 260
    .quad boot_l3_image + 0x063             // slot 261: the image
    .quad boot_l3_low + 0x063               // slot 262: the direct map
    .skip 8 * 249
boot_l3_low:
    .quad boot_l2_low + 0x063
    .quad boot_l2_low + 0x1063
    .quad boot_l2_low + 0x2063
    .quad boot_l2_low + 0x3063
    .skip 8 * 508
boot_l3_image:
    .skip 8 * 322                           // 0xffff82d080000000: slot 322 of its L3
    .quad boot_l2_image + 0x063
    .skip 8 * 189
boot_l2_image:
    .quad 0x2000e3, 0x4000e3, 0x6000e3, 0x8000e3
    .skip 8 * 508
boot_l2_low:
    .set i, 0
    .rept 2048
    .quad (i << 21) + 0x0e3
    .set i, i + 1
    .endr

.section .text.entry, "ax"
.code64
boot_high:
    mov eax, 0x18
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    lea rsp, [rip + {stack} + {stack_top}]
    mov edi, ebp
    xor ebp, ebp                            // ends the chain of frame pointers
    call {boot_main}
    ud2
