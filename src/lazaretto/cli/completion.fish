# Completes `lazaretto` in fish; in ~/.config/fish/config.fish: lazaretto completion fish | source
function _lazaretto
    set -l words (commandline -opc) (commandline -ct)
    set -l found
    for line in (_LAZARETTO_COMPLETE=fish command $words[1] $words[2..-1] 2>/dev/null)
        set -l parts (string split \t -- $line)
        test $parts[1] = plain; and set -a found "$parts[2]"\t"$parts[3]"
    end
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command lazaretto --no-files --arguments '(_lazaretto)'
