# Completes `lazaretto` in fish; in ~/.config/fish/config.fish: lazaretto completion fish | source
function _lazaretto
    set -l words (commandline -opc) (commandline -ct)
    for line in (_LAZARETTO_COMPLETE=fish command $words[1] $words[2..-1] 2>/dev/null)
        set -l parts (string split \t -- $line)
        if test $parts[1] = plain
            printf '%s\t%s\n' $parts[2] $parts[3]
        else
            __fish_complete_path (commandline -ct)
        end
    end
end
complete --command lazaretto --no-files --arguments '(_lazaretto)'
