// Command streams is the program of a container whose streams are tested. "streams lines" echoes each line that it
// reads until the line "end". "streams terminal" does the same, prints the size of its terminal whenever it changes,
// and exits with code 5. "streams stderr" writes to both outputs and exits with code 3.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	stderrCode   = 3
	terminalCode = 5
)

func main() { os.Exit(run(os.Args[len(os.Args)-1])) }

func run(mode string) int {
	switch mode {
	case "stderr":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		return stderrCode
	case "terminal":
		changed := make(chan os.Signal, 1) // one signal is enough, because the size is read after it
		signal.Notify(changed, syscall.SIGWINCH)
		go func() {
			for range changed {
				sayTerminal()
			}
		}()
		sayTerminal()
		sayBack()
		return terminalCode
	default:
		fmt.Println("ready")
		sayBack()
		return 0
	}
}

// sayBack echoes each line that it reads until the line "end".
func sayBack() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan() && lines.Text() != "end"; {
		fmt.Println("read " + lines.Text())
	}
}

// sayTerminal prints the size of the terminal.
func sayTerminal() {
	size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		fmt.Println("there is no terminal:", err)
		return
	}
	fmt.Printf("terminal of %d lines, %d columns\n", size.Row, size.Col)
}
