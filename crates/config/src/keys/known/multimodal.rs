//! Images and sound.

use crate::keys::kinds::Anything;

known! {
"MultimodalGeneral" {
    Rejected("text is the only modality in this build") {
        use_multimodal: bool = "false";
        use_audio: bool = "false";
        use_mrope: bool = "false";
    }
    Accepted("it acts only with use_multimodal or use_audio") {
        freeze_vision_encoder_params: bool = "true";
        freeze_audio_encoder_params: bool = "true";
        image_size_for_vit: Anything = "896";
        image_path: String = "\"\"";
        video_path: String = "\"\"";
        audio_path: String = "\"\"";
        image_placeholder: String = "<|image|>";
        video_placeholder: String = "<|video|>";
        audio_placeholder: String = "<|audio|>";
        use_audio_in_video: bool = "false";
        video_max_grid_t: Option<i64> = "None";
        video_max_grid_h: Option<i64> = "None";
        video_max_grid_w: Option<i64> = "None";
        posemb_type_for_vit: String = "learn";
        max_num_images_per_example: i64 = "-1";
        mrope_section: Vec<i64> = "[24, 20, 20]";
        position_id_per_seconds: i64 = "25";
        attention_for_vit: String = "dot_product";
        vision_encoder_block: String = "none";
    }
}
"VisionTower" {
    Accepted("it acts only with use_multimodal or use_audio") {
        vision_output_length: i64 = "-1";
        hidden_size_for_vit: i64 = "1408";
        intermediate_size_for_vit: i64 = "5632";
        num_attention_heads_for_vit: i64 = "16";
        num_channels_for_vit: i64 = "3";
        tile_size_for_vit: i64 = "336";
        patch_size_for_vit: i64 = "14";
        conv_stride_for_vit: i64 = "14";
        num_hidden_layers_for_vit: i64 = "34";
        rope_theta_for_vit: i64 = "10000";
        vision_output_dim_for_vit: i64 = "4096";
        spatial_merge_size_for_vit: i64 = "2";
        out_hidden_size_for_vit: i64 = "512";
        temporal_patch_size_for_vit: i64 = "2";
        num_position_embeddings_for_vit: i64 = "1024";
        deepstack_visual_indexes_for_vit: Vec<i64> = "[]";
    }
}
"VisionProjector" {
    Accepted("it acts only with use_multimodal or use_audio") {
        projector_input_dim_for_vit: i64 = "4096";
        projector_output_dim_for_vit: i64 = "4096";
        pixel_shuffle_ratio_for_vit: f64 = "0.5";
        projector_dropout_for_vit: f64 = "0.0";
        vision_projector_type: String = "default";
        vision_connector_num_layers: i64 = "2";
        vision_connector_hidden_size: i64 = "0";
        vision_connector_activation: String = "gelu";
        vision_connector_use_bias: bool = "true";
    }
}
"AudioEncoder" {
    Accepted("it acts only with use_multimodal or use_audio") {
        d_model_for_audio: i64 = "256";
        encoder_attention_heads_for_audio: i64 = "4";
        encoder_ffn_dim_for_audio: i64 = "512";
        encoder_layers_for_audio: i64 = "2";
        attention_dropout_for_audio: f64 = "0.0";
        activation_dropout_for_audio: f64 = "0.0";
        activation_function_for_audio: String = "gelu";
        num_mel_bins_for_audio: i64 = "128";
        max_source_positions_for_audio: i64 = "1500";
        scale_embedding_for_audio: bool = "true";
        n_window_for_audio: i64 = "50";
        n_window_infer_for_audio: i64 = "800";
        conv_chunksize_for_audio: i64 = "500";
        downsample_hidden_size_for_audio: i64 = "256";
        output_dim_for_audio: i64 = "512";
        num_conv_layers_for_audio: i64 = "3";
        max_timescale_for_audio: f64 = "10000.0";
        max_sample_len_for_audio: i64 = "10000";
    }
}
}
