"""Prompts and answers from a user's files, as the model's tokenizer reads them.

    files ──rows──▶ examples ──prompt_text: chat template, tokenizer──▶ prompt_set ──order: seed, epoch──▶ prompt number n
            │          │              │
            └──────────┴──────────────┴─▶ complaints: file, line, reason

Nothing here imports torch or transformers, so that planning and the rollouter start at once.
"""
