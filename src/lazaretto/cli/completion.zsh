#compdef lazaretto
# Completes `lazaretto` in zsh; in ~/.zshrc, below compinit: eval "$(lazaretto completion zsh)"
_lazaretto() {
    local kind value help
    local -a values texts
    while IFS=$'\t' read -r kind value help; do
        if [[ $kind == plain ]]; then
            values+=("$value")
            texts+=("$value${help:+  -- $help}")
        fi
    done < <(_LAZARETTO_COMPLETE=zsh "${words[1]}" "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( $#values )); then
        compadd -l -d texts -a values
    else
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _lazaretto "$@"
else
    compdef _lazaretto lazaretto
fi
