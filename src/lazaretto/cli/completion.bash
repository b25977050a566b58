# Completes `lazaretto` in bash; in ~/.bashrc: eval "$(lazaretto completion bash)"
_lazaretto() {
    local value
    COMPREPLY=()
    while IFS= read -r value; do
        COMPREPLY+=("$value")
    done < <(_LAZARETTO_COMPLETE=bash "$1" "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
}
complete -o bashdefault -o default -F _lazaretto lazaretto
