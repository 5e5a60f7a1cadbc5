//! Cases from the field: faults that people hit with routers of this kind, each a small input with the right outcome. A test
//! here is named after its case; where another theme shows the case already, this table says which test does.
//!
//! | case | what happens | shown by |
//! |---|---|---|
//! | A1 | no key: spread, counted, no constant hash | `keys::a1_…`, `affinity::without_a_session_there_is_no_rank_and_all_workers_serve` |
//! | A2 | request id and session id | `keys::a2_…` |
//! | A3 | ten thousand keys of one turn | `crowd::a3_…`; a million: `state::tests::bounds` of the service |
//! | A4 | a key on some turns only | `keys::a4_…` |
//! | A5 | header key and body key disagree | `body_keys::a5_…` |
//! | A6 | one key under each policy | `policies::three_turns_on_one_slot_and_nothing_left_of_failures` |
//! | A7 | one key with three models | `pools::a7_…` |
//! | A8 | sub-agents | `keys::a8_…`, `sources::a8_…` |
//! | A9 | an agent's own header only | `keys::a9_…`, `body_keys::a9_…` |
//! | A10 | the session header reaches the engine | `bodies::headers_and_bodies_arrive_byte_for_byte` |
//! | A11 | prefill and decode | `phases::both_halves_are_bound_each_on_its_own` |
//! | A12 | `previous_response_id` | `responses::a12_…` |
//! | A13 | equal prompts | `body_keys::a13_…` |
//! | A14 | `"user"` inside text | `keys::a14_…`, `body_keys::a14_…` |
//! | A15 | 256, 257 bytes; empty, spaces, UTF-8, NUL | `bad_input::a_key_of_257_bytes_is_400_and_leaves_no_state`, `keys::a15_…` |
//! | B1, B4 | ranks 8..15, on the wire | `ranks::a_range_that_starts_at_eight` |
//! | B2 | hybrid: two endpoints of one worker | `ranks::a_hybrid_worker_of_two_endpoints` |
//! | B3 | one rank: no header | `affinity::a_single_rank_gets_no_rank_header` |
//! | B5 | no drift under load | `ranks::no_rank_drifts_under_rising_load` |
//! | B6 | a named first turn | `direct::later_turns_stay_where_the_first_one_was_named` |
//! | B7 | a client's own rank header | `spoofing::the_filter_decides_whatever_the_client_sends` |
//! | B8 | events that name another rank, or none | `kv_aware::load::b8_…` |
//! | B9 | gauges of each rank | `overload::scraped_gauges_steer_rank_by_rank`, `kv_aware::load::b9_b11_…` |
//! | B10 | sixteen agents, one system prompt, no keys | `kv_aware::burst::b10_…` |
//! | B11 | a hit on a loaded rank | `kv_aware::load::b9_b11_…` |
//! | B12 | the range shrinks | `ranks::shrinking_from_eight_ranks_to_four` |
//! | C1 | 480 at once | `load::four_hundred_and_eighty_at_once_are_spread_evenly` |
//! | C2 | near capacity | `capacity::near_capacity_hits_fall_smoothly` |
//! | C3 | exactly past the margin | `soft::it_moves_exactly_past_the_margin` |
//! | C4 | away and home again | `spill::too_many_requests`, `overload::spill_returns_home` |
//! | C5 | many routers, one burst | `load::many_envoys_do_not_herd` |
//! | C6 | a burst with one prefix | `crowd::c6_…`, `kv_aware::burst::c6_…` |
//! | D7 | a ninth worker | `crowd::d7_…` |
//! | E1, E8 | replies with a topic and without; every encoding | `kv_events::lifes::e1_e8_…`, `kv_events::shapes::e6_e8_…` |
//! | E2 | a gap: replayed, or the rank is cold | `kv_events::order::e2_…` |
//! | E3 | sequence 0 again | `kv_events::lifes::e3_…` |
//! | E4 | a live removal, an older replayed store | `kv_events::order::e4_…` |
//! | E5 | a clear, told late, of one rank | `kv_events::order::e5_…` |
//! | E6 | a removal with an unknown hash | `kv_events::shapes::e6_e8_…` |
//! | E7, E10 | other block sizes, tails, placeholders; hybrid groups | `kv_events::shapes::e7_e10_…` |
//! | E9 | ten million blocks come and go | `blocks::memory` of the service, `bench index` |
//! | E11 | silence, with its cause | `kv_events::silence::e11_…` |
//! | E12 | stored twice, removed once | `kv_events::order::e12_…` |
//! | E13 | tools, calls, parts, texts, tokens | `kv_aware::equal::where_so_many_blocks_overlap_the_engine_finds_so_many`; Anthropic's blocks: `tokenize::tests` of the service |
//! | G1 | large bodies on a pinned turn | `bodies::ten_mebibytes_pass_on_a_first_and_on_a_pinned_turn`, `bodies::a_pinned_body_reaches_the_worker_before_it_is_complete` |
//! | G2 | large bodies that are read | `body_keys::g2_…`, `held_bodies::ten_mebibytes_wait_for_their_slot` |
//! | G3 | hostile bytes; a VM dies | `proxy::g3_…`, `answers::g3_…`, `panic::its_streams_end_and_no_others` |
//! | G4 | every config fault at once | `proxy::g4_…`, `shipped::envoy_refuses_a_bad_plugin_configuration_with_all_its_faults`, `bad_input::a_declaration_names_all_its_faults_at_once` |

mod answers;
mod body_keys;
mod crowd;
mod keys;
mod pools;
mod proxy;
mod responses;
