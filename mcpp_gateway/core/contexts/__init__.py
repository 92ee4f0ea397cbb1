"""The contexts of a pod: live and dormant ones, their tree, and whom they count against."""
