package show

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

var imageColumns = []column{{name: "Name"}, {name: "Size"}, {name: "Pinned"}, {name: "ID", wide: true}}

// imageList is how images are printed.
var imageList = list[*enginev1.Image]{
	many: "images", columns: imageColumns,
	row: func(i *enginev1.Image, _ time.Time) []any {
		return []any{imageName(i), megabytes(i.GetSizeBytes()), yesNo(i.GetPinned()), i.GetId()}
	},
	name: func(i *enginev1.Image) string { return "image/" + imageName(i) },
	whole: func(out io.Writer, output format, images []*enginev1.Image) error {
		return printMessage(out, output, &enginev1.ListImagesResponse{Images: images})
	},
}

func (a *querier) imagesCommand() *cobra.Command {
	var output format
	cmd := &cobra.Command{
		Use:     "images",
		Aliases: []string{"image"},
		Short:   "Show the images in the runtime",
		Long: "Show the images in the runtime, the largest first. Pinned ones are never removed; others are when no container\n" +
			"uses them and the disk is short.",
		Example: "  quartet get images\n  quartet get images -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			response, err := ask(cmd.Context(), a, layout.SyncLoop,
				func(ctx context.Context, conn grpc.ClientConnInterface) (*enginev1.ListImagesResponse, error) {
					return enginev1.NewEngineServiceClient(conn).ListImages(ctx, &enginev1.ListImagesRequest{})
				})
			if err != nil {
				return err
			}
			return imageList.show(cmd, output, selection{}, a.clock.Now(), response.GetImages())
		},
	}
	a.addFlags(cmd, &output, nil)
	return cmd
}

// imageName returns the first name of an image, or its ID if it has none.
func imageName(i *enginev1.Image) string {
	if names := i.GetNames(); len(names) > 0 {
		return names[0]
	}
	return cmp.Or(i.GetId(), unknown)
}

// megabytes returns a size in units of a million bytes, as registries and crictl do.
func megabytes(bytes uint64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
