"""Field names in the published schemas of other servers, as of the day in `READ_ON`.

Pure. `tests/harness/published_fields.py` reads most names from the types of the official clients.
More names come from the documentation of servers that extend OpenAI's dialect. A name listed in
this module never counts as a misspelling (`unknown_fields`), whether shoal supports it or not.
"""

from __future__ import annotations

READ_ON = "2026-11-23"
"""The day on which the schemas were read: openai 3.52, anthropic 2.12, ollama 0.6."""

_CLIENTS = """
    access_programs acknowledged_safety_checks action actions active allowed_callers
    allowed_domains allowed_tools always annotations approval_request_id approve approximate
    arguments async attributes audio authorization authorization_token background best_of betas
    bill_to billing_policy block_binding blocked_domains budget_tokens button bytes
    cache_control caching call_id caller caller_id categories citations cited_text city clear_at
    clear_at_least clear_tool_inputs client_tool_results close_tab code command commands
    compact_threshold compaction comparison_response_id complexity configs connector_id
    container container_id content context context_compression context_management conversation
    country cursor_position custom cyber data default_config defer_loading definition
    description detail diagnostics diff dimensions disable_parallel_tool_use display
    display_height display_height_px display_number display_width display_width_px
    document_index document_title domain domain_secrets double_click download_id
    eager_input_streaming echo edits effort embedding_only embedding_weight enable_zoom enabled
    encoding_format encrypted_content encrypted_index encrypted_stdout end_block_index
    end_char_index end_index end_page_number env environment error error_code error_message
    exclude_tools execution exit_code external_web_access f16_kv fallback_credit_token fallbacks
    file file_data file_id file_ids file_type file_upload file_url filename filters find
    fingerprint form_input format frame_count frame_duration_ms frequency_penalty from function
    function_call functions generate_summary get_page_text grammar headers height hold_key hover
    hybrid_search id image image_url images include include_obfuscation include_usage index
    inference_geo input input_audio input_examples input_fidelity input_image_mask input_schema
    input_tokens instructions is_error is_file_update javascript_exec json_schema keep
    keep_alive key keys left_click left_click_drag left_mouse_down left_mouse_up lines list_tabs
    logit_bias logits_all logprob logprobs logs low_vram main_gpu max_characters
    max_completion_tokens max_content_tokens max_num_results max_output_length max_output_tokens
    max_tokens max_tool_calls max_uses mcp_server_name mcp_servers media_type memory_limit
    message messages metadata middle_click mirostat mirostat_eta mirostat_tau modalities mode
    model moderation moderation_details moderation_stage mouse_move n name namespace navigate
    network_policy never new_lines new_start new_tab num_batch num_ctx num_gpu num_keep
    num_lines num_predict num_thread numa old_lines old_start operation options outcome output
    output_compression output_config output_format output_schema output_tokens outputs
    oversized_image page_age parallel_tool_calls param parameters partial_images path pattern
    pause_after_compaction penalize_newline pending_safety_checks phase policy prediction
    prefix_mismatch_behavior presence_penalty previous_message_id previous_response_id prewarm
    prompt prompt_cache_breakpoint prompt_cache_key prompt_cache_options prompt_cache_retention
    properties quality queries query ranker ranking_options raw read_console read_network
    read_only read_page reason reasoning reasoning_effort reasoning_tokens refusal region
    remaining repeat_last_n repeat_penalty require_approval required response_format
    response_inclusion result results retrieved_at return_code revised_prompt right_click role
    safety_identifier schema score score_threshold screenshot scroll scroll_to scroll_x scroll_y
    search_content_types search_context_size search_result_index seed server_description
    server_label server_name server_tool_results server_url service_tier signature size
    size_bytes skill_id skills source sources speed start_block_index start_char_index
    start_index start_line start_page_number state_changes status stderr stdout steps stop
    stop_reason stop_sequences store stream stream_options strict suffix summary svg svg_usage
    switch_tab syntax system tab_id tabs task_budget temperature template text text_weight tfs_z
    think thinking thread timeout_ms timezone title to token tool tool_call_id tool_calls
    tool_changes tool_choice tool_configuration tool_id tool_name tool_names tool_references
    tool_use_id tools toolset_name top_k top_logprobs top_p total total_lines total_tokens
    transformations trigger triple_click truncate truncation ttl tunnel_id type typical_p url
    url_sources use_cache use_mlock use_mmap user user_id user_input user_location
    user_profile_id value variables vector_store_ids verbosity version vocab_only voice wait
    web_search_options width working_directory workspace_id x y zoom
"""
CLIENTS = frozenset(_CLIENTS.split())
"""Fields that OpenAI's, Anthropic's and Ollama's clients may send, at any depth."""

_SERVERS = """
    add_generation_prompt add_special_tokens allowed_token_ids api_key bad_words cache_prompt
    cache_salt chat_template chat_template_kwargs client_metadata continue_final_message
    custom_llm_provider data_parallel_rank debug detokenize documents dry_allowed_length
    dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent
    dynatemp_range early_stopping ebnf enable_thinking extra_body extra_headers extra_query
    grammar_lazy grammar_triggers guided_choice guided_decoding_backend guided_grammar
    guided_json guided_regex guided_whitespace_pattern id_slot ignore_eos include_reasoning
    include_stop_str_in_output kv_transfer_params length_penalty litellm_metadata
    logits_processors lora_path min_keep min_p min_tokens mm_processor_kwargs models n_discard
    n_keep n_predict n_probs num_retries parse_tool_calls plugins post_sampling_probs preset
    priority prompt_logprobs provider reasoning_content reasoning_format regex
    repetition_penalty request_id response_fields return_progress return_token_ids return_tokens
    return_tokens_as_token_ids route samplers separate_reasoning skip_special_tokens
    spaces_between_special_tokens speculative stop_token_ids stream_reasoning structural_tag
    structured_outputs t_max_predict_ms thinking_budget thinking_budget_tokens
    thinking_token_budget timeout timings_per_token top_a top_n_sigma transforms
    truncate_prompt_tokens typical use_beam_search vllm_xargs xtc_probability xtc_threshold
"""
SERVERS = frozenset(_SERVERS.split())
"""Additional fields of vLLM, SGLang, llama.cpp's server, OpenRouter and LiteLLM."""

PUBLISHED_FIELDS = CLIENTS | SERVERS
