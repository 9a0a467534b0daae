//! Places of structure members in the running kernel, from its BTF. They move between builds, so none is written down
//! here.

macro_rules! offsets {
    (members { $($field:ident = $structure:literal $member:literal;)* } sizes { $($size:ident = $sized:literal;)* }) => {
        /// Byte offsets of members and sizes of structures.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "named as structure and member")]
        pub struct Offsets { $(pub $field: u64,)* $(pub $size: u64,)* }

        impl Offsets {
            /// Fills all of them from a look-up by structure and member, and a look-up of structure sizes.
            ///
            /// # Errors
            /// The first structure and member that is not there.
            pub fn fill(
                member: impl Fn(&str, &str) -> Option<u64>,
                size: impl Fn(&str) -> Option<u64>,
            ) -> Result<Self, (&'static str, &'static str)> {
                Ok(Self {
                    $($field: member($structure, $member).ok_or(($structure, $member))?,)*
                    $($size: size($sized).ok_or(($sized, ""))?,)*
                })
            }
        }

        impl Offsets {
            /// No structure of Linux is larger; what claims a place beyond is wrong.
            pub const LARGEST: u32 = 1 << 16;

            /// How many there are: those of [`NEEDED`] and the sizes.
            pub const COUNT: usize = [$(stringify!($field),)* $(stringify!($size),)*].len();

            /// Takes them in order: those of [`NEEDED`], then the sizes. `None` if one is larger than
            /// [`Self::LARGEST`].
            #[must_use]
            pub fn of(words: &[u32; Self::COUNT]) -> Option<Self> {
                if words.iter().any(|word| *word > Self::LARGEST) {
                    return None;
                }
                let mut words = words.iter().map(|word| u64::from(*word));
                Some(Self { $($field: words.next()?,)* $($size: words.next()?,)* })
            }
        }

        /// The structures whose sizes are needed.
        pub const SIZED: &[&str] = &[$($sized,)*];

        /// Structure and member of every offset, for tools that collect them.
        pub const NEEDED: &[(&str, &str)] = &[$(($structure, $member),)*];
    };
}

offsets! {
    members {
    skb_next = "sk_buff" "next";
    skb_dev = "sk_buff" "dev";
    skb_sk = "sk_buff" "sk";
    skb_destructor = "sk_buff" "destructor";
    skb_len = "sk_buff" "len";
    skb_data_len = "sk_buff" "data_len";
    skb_queue_mapping = "sk_buff" "queue_mapping";
    // The bytes of bit fields: `cloned` and `head_frag`; `pkt_type` and `ip_summed` (see [`super::skb`]).
    skb_cloned = "sk_buff" "cloned";
    skb_pkt_type = "sk_buff" "pkt_type";
    skb_csum_start = "sk_buff" "csum_start";
    skb_csum_offset = "sk_buff" "csum_offset";
    skb_protocol = "sk_buff" "protocol";
    skb_transport_header = "sk_buff" "transport_header";
    skb_network_header = "sk_buff" "network_header";
    skb_mac_header = "sk_buff" "mac_header";
    skb_tail = "sk_buff" "tail";
    skb_end = "sk_buff" "end";
    skb_head = "sk_buff" "head";
    skb_data = "sk_buff" "data";
    skb_truesize = "sk_buff" "truesize";
    skb_users = "sk_buff" "users";
    info_nr_frags = "skb_shared_info" "nr_frags";
    info_tx_flags = "skb_shared_info" "tx_flags";
    info_gso_size = "skb_shared_info" "gso_size";
    info_gso_segs = "skb_shared_info" "gso_segs";
    info_frag_list = "skb_shared_info" "frag_list";
    info_gso_type = "skb_shared_info" "gso_type";
    info_dataref = "skb_shared_info" "dataref";
    info_frags = "skb_shared_info" "frags";
    page_refcount = "page" "_refcount";
    device_address = "net_device" "dev_addr";
    napi_state = "napi_struct" "state";
    napi_device = "napi_struct" "dev";
    queue_lock = "netdev_queue" "_xmit_lock";
    queue_lock_owner = "netdev_queue" "xmit_lock_owner";
    queue_trans_start = "netdev_queue" "trans_start";
    queue_state = "netdev_queue" "state";
    dql_num_queued = "dql" "num_queued";
    dql_adj_limit = "dql" "adj_limit";
    dql_last_obj_cnt = "dql" "last_obj_cnt";
    dql_limit = "dql" "limit";
    dql_num_completed = "dql" "num_completed";
    dql_prev_ovlimit = "dql" "prev_ovlimit";
    dql_prev_num_queued = "dql" "prev_num_queued";
    dql_prev_last_obj_cnt = "dql" "prev_last_obj_cnt";
    dql_lowest_slack = "dql" "lowest_slack";
    dql_slack_start_time = "dql" "slack_start_time";
    dql_max_limit = "dql" "max_limit";
    dql_min_limit = "dql" "min_limit";
    dql_slack_hold_time = "dql" "slack_hold_time";
    page_compound_head = "page" "compound_head";
    page_frag_page = "page_frag" "page";
    page_frag_offset = "page_frag" "offset";
    page_frag_size = "page_frag" "size";
    sg_page_link = "scatterlist" "page_link";
    sg_offset = "scatterlist" "offset";
    sg_length = "scatterlist" "length";
    skb_vlan_proto = "sk_buff" "vlan_proto";
    skb_vlan_tci = "sk_buff" "vlan_tci";
    napi_skb = "napi_struct" "skb";
    }
    sizes {
    sg_size = "scatterlist";
    skb_size = "sk_buff";
    info_size = "skb_shared_info";
    page_size = "page";
    }
}
