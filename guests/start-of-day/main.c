/* What a PV kernel finds at its first instruction: registers, start_info, its memory. */
#include "guest.h"

const char test_name[] = "start-of-day";

static void registers(void)
{
	check(entry_regs[AT_RSI] == (u64)start_info, "rsi is not start_info");
	for (int i = 0; i < 16; i++)
		if (i != AT_RSI && i != AT_RSP)
			check(entry_regs[i] == 0, "register %d is %#lx", i, entry_regs[i]);
	check(entry_regs[AT_RSP] == start_info->pt_base + (start_info->nr_pt_frames + 1) * PAGE, "rsp is %#lx", entry_regs[AT_RSP]);
	check(entry_regs[AT_CS] == FLAT_KERNEL_CS, "cs is %#lx", entry_regs[AT_CS]);
	check(entry_regs[AT_SS] == FLAT_KERNEL_SS, "ss is %#lx", entry_regs[AT_SS]);
	for (int i = AT_DS; i <= AT_GS; i++)
		check(entry_regs[i] == 0, "selector %d is %#lx", i, entry_regs[i]);
	check((entry_regs[AT_RFLAGS] & ~0x44ul) == 0x202, "rflags is %#lx", entry_regs[AT_RFLAGS]);
}

static void info(void)
{
	check(!memcmp(start_info->magic, "xen-3.0-x86_64", 14), "magic is %s", start_info->magic);
	check(start_info->flags & 1, "flags are %#x: not privileged", start_info->flags);
	check(start_info->flags & 2, "flags are %#x: not the initial domain", start_info->flags);
	check(start_info->store_mfn == 0 && start_info->store_evtchn == 0, "there is a xenstore");
	check(start_info->shared_info % PAGE == 0, "shared_info at %#lx", start_info->shared_info);
	check(start_info->mfn_list % PAGE == 0, "P2M at %#lx", start_info->mfn_list);
	check(start_info->nr_p2m_frames == 0, "%lu P2M frames at %#lx without INIT_P2M", start_info->nr_p2m_frames,
	      start_info->first_p2m_pfn);
	check(shared_info()->vcpu[0].upcall_mask == 1, "events start unmasked");
	u32 len = 0;
	while (len < sizeof(start_info->cmd_line) && start_info->cmd_line[len])
		len++;
	check(len >= 6 && !memcmp(start_info->cmd_line + len - 6, "a test", 6), "command line is %s", start_info->cmd_line);
}

static void memory(void)
{
	for (u64 pfn = 0; pfn < start_info->nr_pages; pfn++) {
		u64 back = ((volatile u64 *)M2P_BASE)[mfn_of_pfn(pfn)];
		if (!check(back == pfn, "pfn %#lx is mfn %#lx is pfn %#lx", pfn, mfn_of_pfn(pfn), back))
			break;
	}
	u64 first = mfn_of_pfn(0);
	u64 end = start_info->pt_base + (start_info->nr_pt_frames + 1) * PAGE;
	end = (end + (512 << 10) + (4 << 20) - 1) & -(4ul << 20);
	for (u64 va = VIRT_BASE; va < end; va += PAGE) {
		u64 entry = *entry_for((void *)va, 1);
		bool is_table = va >= start_info->pt_base && va < start_info->pt_base + start_info->nr_pt_frames * PAGE;
		if (!check((entry & ADDR_MASK) / PAGE == first + pfn_of((void *)va), "%#lx is mapped by %#lx", va, entry) ||
		    !check((entry & (P | US)) == (P | US), "%#lx is mapped by %#lx", va, entry) ||
		    !check(!(entry & RW) == is_table, "%#lx is mapped by %#lx", va, entry))
			break;
	}
	check(!(*entry_for((void *)end, 2) & P), "the mapping goes on behind %#lx", end);
}

void test_main(void)
{
	registers();
	memory();
	info();
}
