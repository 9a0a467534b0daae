/* The frame that a trap leaves on the kernel stack: rcx, r11, [error code,] rip, cs, rflags, rsp, ss. */
#include "guest.h"

const char test_name[] = "trap-frame";


/* Copies what lies on the stack, then leaves by the way that needs none of it. */
void raw_entry(void);
asm(".text\nraw_entry:\n\t"
    "lea seen_copy(%rip), %rax\n\tmov %rsp, 64(%rax)\n\t"
    ".set i, 0\n\t.rept 8\n\tmov i(%rsp), %rdx\n\tmov %rdx, i(%rax)\n\t.set i, i + 8\n\t.endr\n\t"
    "mov raw_resume(%rip), %rax\n\tmov raw_rsp(%rip), %rsp\n\tjmp *%rax");
u64 seen_copy[9], raw_resume, raw_rsp, odd_rsp;

#define RAW(code, ...)                                                                                                 \
	asm volatile("lea 1f(%%rip), %%rax\n\tmov %%rax, raw_resume(%%rip)\n\tmov %%rsp, raw_rsp(%%rip)\n\t"           \
		     "mov $0xc0ffee, %%ecx\n\tmov $0xbeef, %%r11d\n\t" code "\n1:" __VA_ARGS__)

static void without_error_code(u8 flags, bool is_masked)
{
	volatile u8 *mask = &shared_info()->vcpu[0].upcall_mask;
	set_trap(6, flags, raw_entry);
	*mask = is_masked;
	u64 rip, rsp;
	RAW("lea 2f(%%rip), %%rdx\n\tmov %%rdx, %0\n\tmov %%rsp, %1\n2:\tud2", : "=m"(rip), "=m"(rsp) : : "rax", "rcx", "rdx",
	    "r11", "memory");
	check(seen_copy[8] % 16 == 0 || seen_copy[8] % 16 == 8, "stack pointer %#lx", seen_copy[8]);
	check(seen_copy[8] + 7 * 8 <= rsp && seen_copy[8] + 7 * 8 > rsp - 16, "frame at %#lx, stack at %#lx", seen_copy[8], rsp);
	check((seen_copy[8] + 7 * 8) % 16 == 0, "the frame ends at %#lx", seen_copy[8] + 7 * 8);
	check(seen_copy[0] == 0xc0ffee, "rcx is %#lx", seen_copy[0]);
	check(seen_copy[1] == 0xbeef, "r11 is %#lx", seen_copy[1]);
	check(seen_copy[2] == rip, "rip is %#lx", seen_copy[2]);
	check((seen_copy[3] & 0xffff) == (FLAT_KERNEL_CS & ~3), "cs is %#lx", seen_copy[3]);
	check((seen_copy[3] >> 32 & 0xff) == is_masked, "saved mask in %#lx", seen_copy[3]);
	check((seen_copy[4] & 0x3200) == (is_masked ? 0 : 0x200), "rflags is %#lx with the mask %d", seen_copy[4], is_masked);
	check(seen_copy[5] == rsp, "rsp is %#lx", seen_copy[5]);
	check(seen_copy[6] == FLAT_KERNEL_SS, "ss is %#lx", seen_copy[6]);
	check(*mask == ((flags & 4) || is_masked), "mask is %d behind a gate with flags %d", *mask, flags);
	*mask = 1;
}

void test_main(void)
{
	for (int flags = 0; flags < 8; flags += 4)
		for (int is_masked = 0; is_masked < 2; is_masked++)
			without_error_code(flags, is_masked);
	/* With an error code: hlt is refused. */
	set_trap(13, 0, raw_entry);
	u64 rsp;
	RAW("mov %%rsp, %0\n\thlt", : "=m"(rsp) : : "rax", "rcx", "rdx", "r11", "memory");
	check(seen_copy[0] == 0xc0ffee && seen_copy[1] == 0xbeef, "rcx %#lx, r11 %#lx", seen_copy[0], seen_copy[1]);
	check(seen_copy[2] == 0, "error code is %#lx", seen_copy[2]);
	check((seen_copy[4] & 0xffff) == (FLAT_KERNEL_CS & ~3), "cs is %#lx", seen_copy[4]);
	check(seen_copy[6] == rsp && seen_copy[7] == FLAT_KERNEL_SS, "rsp %#lx, ss %#lx", seen_copy[6], seen_copy[7]);
	check((seen_copy[8] + 8 * 8) % 16 == 0, "the frame ends at %#lx", seen_copy[8] + 8 * 8);
	/* Any alignment of the stack will do. */
	RAW("sub $3, %%rsp\n\tmov %%rsp, odd_rsp(%%rip)\n\thlt", : : : "rax", "rcx", "rdx", "r11", "memory");
	check(seen_copy[6] == odd_rsp, "rsp is %#lx, was %#lx", seen_copy[6], odd_rsp);
}
