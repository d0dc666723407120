// Package boot is the contract between the harness of virtual machines and the init in them.
package boot

// The paths of files in a machine.
const (
	// ConfigPath has the Config as JSON.
	ConfigPath = "/config.json"
	// Program is the program that is run.
	Program = "/program"
)

// The serial ports of a machine. The first is the kernel's.
const (
	// Output gets what the program prints.
	Output = "/dev/ttyS1"
	// Status gets Begun, and then a line with StatusPrefix and the program's exit code, or why it could not be run.
	Status = "/dev/ttyS2"
	// StatusPrefix begins the line.
	StatusPrefix = "status "
	// Begun is the line of a machine that starts its program.
	Begun = "begun"
	// Restart is the line of a program that restarts the machine.
	Restart = "restart"
)

// Variable is an environment variable of the kernel's command line, which the init and the program have: which start of
// the machine this is, 1 for the first.
const Variable = "QUARTET_VM"

// Config is what the init does.
type Config struct {
	// Modules are the paths of kernel modules in the order in which they are loaded.
	Modules []string `json:"modules"`
	// Root is the device of the root file system, an ext4; empty if it is the archive that the kernel has unpacked. A
	// container needs one, because its runtime cannot leave the kernel's first file system.
	Root string `json:"root,omitempty"`
	// Args are the program with its arguments.
	Args []string `json:"args"`
	// Env is the program's environment.
	Env []string `json:"env"`
}
