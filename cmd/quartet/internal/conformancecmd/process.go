package conformancecmd

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// process is the part as a child process.
type process struct {
	command []string
	log     io.Writer
	cmd     *exec.Cmd
}

// start starts it in a process group of its own, so that stop ends its children, too.
func (p *process) start() error {
	p.cmd = exec.Command(p.command[0], p.command[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting the part: %w", err)
	}
	return nil
}

// stop kills it.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	_ = p.cmd.Wait()                                      // the error is that it was killed
}

// restart kills it without a warning, and starts it again.
func (p *process) restart(context.Context) error {
	p.stop()
	return p.start()
}
